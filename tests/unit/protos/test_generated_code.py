"""protos/gen is committed; these tests hold it to its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def _files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_committed_code_is_what_the_sources_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "protos" / "generate.py", tmp_path], check=True, capture_output=True)
    fresh, committed = _files(tmp_path / "kolm"), _files(ROOT / "protos" / "gen" / "kolm")
    assert sorted(fresh) == sorted(committed), "run `make proto`"
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run `make proto`"


def test_every_field_of_the_published_config_is_optional_on_the_wire() -> None:
    from kolm.generation.v1 import speculation_pb2

    fields = speculation_pb2.SpecDecodeConfig.DESCRIPTOR.fields
    assert [field.name for field in fields] == ["method", "eagle_head", "k", "accept_threshold", "verify", "parameters"]
    assert all(field.has_presence for field in fields if field.name != "parameters")  # a map is empty


def test_every_file_names_its_packages_for_go_and_java() -> None:
    for path in sorted((ROOT / "protos" / "kolm").rglob("*.proto")):
        lines, (_, service, version) = path.read_text().splitlines(), path.parent.relative_to(ROOT / "protos").parts
        assert f'option go_package = "kolm/{service}/{version};{service}{version}";' in lines, path
        assert f'option java_package = "kolm.{service}.{version}";' in lines, path
