"""Regenerate protos/gen from protos/kolm: messages, gRPC stubs and type stubs for both.

    python protos/generate.py [OUTPUT]

The result is committed; tests/unit/docs/test_pages.py proves it fresh. Versions of protoc and plugins come from
constraints.txt.
"""

from __future__ import annotations

import os
import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent


def generate(output: Path) -> None:
    """Write the generated package tree `kolm/…` under `output`, which has to exist.

    Raises RuntimeError where protoc refuses.
    """
    sources = sorted((PROTOS / "kolm").rglob("*.proto"))
    with_services = [source for source in sources if "\nservice " in source.read_text(encoding="utf-8")]
    _put_plugins_on_path()
    _protoc(sources, f"--python_out={output}", f"--mypy_out=quiet:{output}")
    _protoc(with_services, f"--grpc_python_out={output}", f"--mypy_grpc_out=quiet:{output}")
    _mark_packages(output / "kolm")


def _protoc(sources: list[Path], *outputs: str) -> None:
    names = [source.relative_to(PROTOS).as_posix() for source in sources]
    roots = (PROTOS, PROTOS / "third_party", resources.files("grpc_tools") / "_proto")
    if protoc.main(["protoc", *(f"--proto_path={root}" for root in roots), *outputs, *names]) != 0:
        raise RuntimeError("protoc refused the sources; its message is above")


def _put_plugins_on_path() -> None:
    """protoc finds protoc-gen-mypy on PATH; this interpreter's own scripts come first."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _mark_packages(root: Path) -> None:
    """The face of the package is written by hand, beside the sources; the packages below have nothing of their own."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")]:
        (folder / "__init__.py").touch()
    (root / "__init__.py").write_bytes((PROTOS / "kolm" / "__init__.py").read_bytes())
    (root / "py.typed").touch()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PROTOS / "gen"
    target.mkdir(parents=True, exist_ok=True)
    generate(target)
