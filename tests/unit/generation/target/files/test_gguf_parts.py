"""Models in several GGUF files, as upstream's writer splits them, and parts that do not fit together."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from services.generation.target.config.config import read_config
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.part_names import PartName, sibling_paths
from services.generation.target.identity import base_manifest, tokenizer_cid
from services.generation.target.weights import checked_weights
from tests.fakes.tiny_gguf import make_tiny_gguf


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The first of three parts."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", part_tensors=5)
    assert PartName.of(path.name) == PartName("tiny", 1, 3)
    return path


def part(first: Path, number: int) -> Path:
    return first.with_name(f"tiny-{number:05}-of-00003.gguf")


def test_a_model_in_parts_has_the_tensors_of_the_whole_one(first: Path, tmp_path: Path) -> None:
    whole = make_tiny_gguf(tmp_path / "whole.gguf")
    one, parts = checked_weights(whole, read_config(whole)), checked_weights(first, read_config(first))
    assert one.names() == parts.names()
    for name in one.names():
        assert one.storage(name) == parts.storage(name)
        assert one.tensor(name).data.tobytes() == parts.tensor(name).data.tobytes()
    assert tokenizer_cid(whole) == tokenizer_cid(first)


def test_a_manifest_names_every_part_with_its_digest(first: Path) -> None:
    before = base_manifest(first)
    assert [file.name for file in before.weights] == [f"model-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    assert [file.size for file in before.weights] == [part(first, n).stat().st_size for n in (1, 2, 3)]
    last = part(first, 3)
    last.write_bytes(last.read_bytes()[:-1] + b"\x01")
    assert base_manifest(first).cid != before.cid


def other_count(first: Path) -> None:
    other = make_tiny_gguf(first.with_name("other.gguf"), part_tensors=7)
    shutil.copy(other.with_name("other-00002-of-00002.gguf"), part(first, 2))


def other_tensors(first: Path) -> None:
    """A part with the right number and count, of a model with one tensor more."""
    make_tiny_gguf(
        first.with_name("other.gguf"),
        part_tensors=5,
        change_tensors=lambda t: t.update({"more": t["output_norm.weight"]}),
    )
    shutil.copy(first.with_name("other-00002-of-00003.gguf"), part(first, 2))


FAULTS: dict[str, tuple[Callable[[Path], object], int]] = {
    "missing": (lambda first: part(first, 2).unlink(), 2),
    "doubled": (lambda first: shutil.copy(part(first, 3), part(first, 2)), 2),
    "the first again": (lambda first: shutil.copy(first, part(first, 3)), 3),
    "truncated": (lambda first: part(first, 3).write_bytes(part(first, 3).read_bytes()[:-64]), 3),
    "of another split": (other_count, 2),
    "of another model": (other_tensors, 2),
    "no GGUF file": (lambda first: part(first, 2).write_bytes(b"not found"), 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_do_not_fit_are_refused_by_the_name_of_the_part(first: Path, fault: str) -> None:
    spoil, number = FAULTS[fault]
    spoil(first)
    with pytest.raises(WeightsInvalid) as refused:
        GgufFile.open(first)
    assert str(refused.value).startswith(str(part(first, number)))


def test_another_part_than_the_first_is_refused_with_the_first_ones_name(first: Path) -> None:
    with pytest.raises(WeightsInvalid, match=first.name):
        GgufFile.open(part(first, 2))


def test_a_part_under_another_name_is_refused(first: Path) -> None:
    renamed = first.rename(first.with_name("model.gguf"))
    with pytest.raises(WeightsInvalid, match=r"part 1 of 3"):
        GgufFile.open(renamed)


@pytest.mark.parametrize("name", ["tiny-00001-of-00001.gguf", "TINY-00001-of-00001.GGUF", "TINY-00001-OF-00001.gguf"])
def test_a_whole_model_may_be_named_as_the_only_part(name: str, tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf").rename(tmp_path / name)
    assert GgufFile.open(path).paths == (path,)
    assert sibling_paths(path) == [path]
