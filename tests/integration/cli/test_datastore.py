"""`kolm datastore` as a person runs it: a datastore at the end, or a line that says what is wrong, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.generation.target.identity import base_cid, tokenizer_cid
from tests.fakes.tiny_model import make_tiny_model

TEXT = "The ledger keeps one receipt for every request that was served.\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return written(tmp_path / "texts")


@pytest.fixture(scope="module")
def store(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; a test that changes it takes a copy."""
    folder = tmp_path_factory.mktemp("built")
    built(written(folder / "texts"), base, folder / "store")
    return folder / "store"


def written(folder: Path) -> Path:
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT)
    (folder / "two.md").write_text(TEXT * 3)
    return folder


def datastore(*words: object) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["datastore", *map(str, words)])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def built(texts: Path, base: Path, out: Path, *more: object) -> dict[str, Any]:
    code, printed, talk = datastore("build", texts, "--base", base, "--out", out, "--json", *more)
    assert code == 0, talk
    document: dict[str, Any] = json.loads(printed)
    return document


def test_a_datastore_is_built_shown_and_verified(base: Path, texts: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (texts / "picture.bin").write_bytes(b"\0\1\2")
    code, printed, talk = datastore("build", texts, "--base", base, "--out", store)
    assert code == 0
    assert "1 files are not UTF-8 text and were left out" in talk
    shown = json.loads(datastore("show", store, "--json")[1])
    assert (shown["documents"], shown["tokenizer_cid"]) == (2, tokenizer_cid(base))
    assert shown["embedding"] == {"kind": "base", "cid": base_cid(base), "layer": 0}
    assert shown["cid"] in printed
    assert datastore("show", store, "--verify")[0] == 0


@pytest.fixture
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal comes before the tokenizer is loaded, which takes seconds."""

    def loaded(directory: Path) -> None:
        raise AssertionError(f"the tokenizer of {directory} is loaded")

    monkeypatch.setattr("services.datastores.tokenising.fast_tokenizer", loaded)


@pytest.mark.usefixtures("no_tokenizer")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--passage-tokens", "1"), "--passage-tokens"),
        (("--base", "nowhere"), "nowhere"),
    ],
)
def test_flags_that_make_no_datastore_are_usage_errors(
    base: Path, texts: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    code, _, talk = datastore("build", texts, "--base", base, "--out", tmp_path / "store", *flags)
    assert code == 2
    assert said in talk
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


@pytest.mark.usefixtures("no_tokenizer")
@pytest.mark.parametrize(
    ("name", "data", "named", "said"),
    [
        ("empty.txt", b"", False, "no text"),
        ("blank.jsonl", b"\n\n", False, "no text"),
        ("x.bin", b"\0", False, "no text"),
        ("x.bin", b"\0", True, "x.bin: not UTF-8 text"),
        ("x.jsonl", b'{"txt": 1}\n', False, "x.jsonl:1: expected a string"),
    ],
)
def test_a_text_that_is_none_is_named_and_leaves_nothing(
    base: Path, tmp_path: Path, name: str, data: bytes, named: bool, said: str
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / name).write_bytes(data)
    code, _, talk = datastore("build", folder / name if named else folder, "--base", base, "--out", tmp_path / "store")
    assert code == 2
    assert said in talk
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


@pytest.mark.usefixtures("no_tokenizer")
def test_what_stands_at_out_is_left_alone(base: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("mine")
    code, _, talk = datastore("build", texts, "--base", base, "--out", tmp_path / "store")
    assert code == 1
    assert "stands already" in talk
    assert (tmp_path / "store").read_text() == "mine"


@pytest.mark.parametrize("damage", ["cut", "changed", "absent"])
def test_a_damaged_shard_fails_verification_by_its_name(store: Path, tmp_path: Path, damage: str) -> None:
    damaged = shutil.copytree(store, tmp_path / "store")
    shard = damaged / "tokens-00000.npy"
    data = shard.read_bytes()
    if damage == "absent":
        shard.unlink()
    else:
        shard.write_bytes(data[:-2] if damage == "cut" else data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    code, printed, talk = datastore("show", damaged, "--verify")
    assert (code, printed) == (3, "")
    assert "tokens-00000.npy" in talk
