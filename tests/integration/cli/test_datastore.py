"""`kolm datastore` as a person runs it: a datastore at the end, or one line about the problem."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from services.generation.target.identity import base_cid, tokenizer_cid
from tests.cli import kolm

TEXT = "The ledger keeps one receipt for every request that was served.\n"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return written(tmp_path / "texts")


@pytest.fixture(scope="module")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; a test that changes it takes a copy."""
    folder = tmp_path_factory.mktemp("built")
    assert datastore("build", written(folder / "texts"), "--model", model, "--out", folder / "store").code == 0
    return folder / "store"


def written(folder: Path) -> Path:
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT)
    (folder / "two.md").write_text(TEXT * 3)
    return folder


datastore = partial(kolm, "datastore")


def test_a_datastore_is_built_shown_and_verified(model: Path, texts: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (texts / "picture.bin").write_bytes(b"\0\1\2")
    done = datastore("build", texts, "--model", model, "--out", store)
    shown = datastore("show", store, "--json").document
    assert (shown["documents"], shown["tokenizer_cid"]) == (2, tokenizer_cid(model))
    assert shown["embedding"] == {"kind": "base", "cid": base_cid(model), "layer": 0}
    assert (done.code, shown["cid"] in done.out) == (0, True)
    assert datastore("show", store, "--verify").code == 0


def test_a_datastore_is_built_of_the_model_s_answers_which_are_asked_for_once(model: Path, tmp_path: Path) -> None:
    prompts, store = tmp_path / "prompts.jsonl", tmp_path / "store"
    prompts.write_text("".join(f'{{"prompt": "number {number}"}}\n' for number in range(5)))
    build = ("build", prompts, "--model", model, "--out", store, "--answer-tokens", "8")
    assert datastore(*build, "--answers", "3").code == 0
    (answers,) = tmp_path.glob("store.answers-*.jsonl")
    few = answers.read_text()
    assert datastore("show", store, "--json").document["documents"] == few.count("\n") == 3
    shutil.rmtree(store)
    assert datastore(*build, "--answers", "9").code == 0
    assert datastore("show", store, "--json").document["documents"] == 5
    assert answers.read_text().startswith(few)


@pytest.mark.parametrize("line", ['{"prompt": ""}', '{"text": "a document"}', "no JSON"])
def test_lines_that_are_no_prompts_are_not_answered(model: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(line)
    flags = ("--model", model, "--out", tmp_path / "store", "--answers", "3")
    assert datastore("build", tmp_path / "prompts.jsonl", *flags).code == 2
    assert datastore("build", tmp_path / "missing.jsonl", *flags).code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl"]


@pytest.fixture
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal comes before the tokenizer is loaded, which takes seconds."""

    def loaded(directory: Path) -> None:
        raise AssertionError(f"the tokenizer of {directory} is loaded")

    monkeypatch.setattr("services.datastores.tokenising.fast_tokenizer", loaded)


@pytest.mark.usefixtures("no_tokenizer")
@pytest.mark.parametrize("flags", [("--passage-tokens", "1"), ("--model", "nowhere")])
def test_flags_that_make_no_datastore_are_usage_errors(
    model: Path, texts: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert datastore("build", texts, "--model", model, "--out", tmp_path / "store", *flags).code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


@pytest.mark.usefixtures("no_tokenizer")
@pytest.mark.parametrize(
    ("name", "data", "named"), [("empty.txt", b"", False), ("x.bin", b"\0", True), ("x.jsonl", b'{"txt": 1}\n', False)]
)
def test_a_text_that_is_none_leaves_nothing(model: Path, tmp_path: Path, name: str, data: bytes, named: bool) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / name).write_bytes(data)
    texts = folder / name if named else folder
    assert datastore("build", texts, "--model", model, "--out", tmp_path / "store").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]


def test_a_damaged_shard_fails_verification_by_its_name(store: Path, tmp_path: Path) -> None:
    shard = shutil.copytree(store, tmp_path / "store") / "tokens-00000.npy"
    data = shard.read_bytes()
    shard.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    done = datastore("show", tmp_path / "store", "--verify")
    assert (done.code, done.out, "tokens-00000.npy" in done.err) == (3, "", True)
