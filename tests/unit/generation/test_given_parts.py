"""The parts that go with a base, held against it by small files: the base's weights are never read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.tokenising import fast_tokenizer
from services.generation.given_parts import Part, WrongPart, check_parts
from services.generation.target.config.config import read_config
from services.generation.target.identity import base_cid, tokenizer_cid
from tests.cli import FREE, kolm
from tests.fakes.datastores import documents
from tests.fakes.heads import block_config, head_config, write_kolm, write_kolm_block
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_head import edit_json, make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model


@dataclass(frozen=True)
class Made:
    """Two bases, and for each kind a part that was made for the first base."""

    one: Path
    other: Path
    parts: dict[str, Part]


def make_store(folder: Path, base: Path) -> Path:
    builder = DatastoreBuilder(base, fast_tokenizer(base), tokenizer_cid(base), BuildParameters())
    builder.build(documents(["the ledger keeps one receipt " * 4]), folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("parts")
    one = make_tiny_model(folder / "one", layers=1)
    other = make_tiny_model(folder / "other", layers=1, hidden=32, vocab=400)
    config = read_config(one)
    write_kolm(folder / "eagle3", head_config(config))
    write_kolm_block(folder / "block", block_config(config))
    parts = {
        "datastores": Part("--shared-datastore", make_store(folder / "store", one)),
        "eagle3": Part("--head", folder / "eagle3"),
        "block": Part("--head", folder / "block"),
        "adapters": Part("--adapter", make_tiny_adapter(folder / "adapter", one, base_model_name_or_path=None), "kind"),
    }
    return Made(one, other, parts)


def given(kind: str, part: Part) -> dict[str, Any]:
    return {"heads" if kind in ("eagle3", "block") else kind: [part]}


KINDS = ("datastores", "eagle3", "block", "adapters")


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_another_base_is_refused_by_its_flag_and_one_of_this_base_is_not(made: Made, kind: str) -> None:
    part = made.parts[kind]
    check_parts(made.one, **given(kind, part))
    with pytest.raises(WrongPart) as wrong:
        check_parts(made.other, **given(kind, part))
    assert str(wrong.value).startswith(f"{part.flag}: ")


def test_a_datastore_of_other_weights_with_the_same_tokenizer_is_refused_where_their_digest_is_known(
    made: Made, tmp_path: Path
) -> None:
    same_words = make_tiny_model(tmp_path / "same", layers=1, seed=1)
    with pytest.raises(WrongPart, match=base_cid(same_words)):
        check_parts(same_words, datastores=[made.parts["datastores"]])


def test_an_adapter_that_names_another_base_is_refused(made: Made, tmp_path: Path) -> None:
    adapter = make_tiny_adapter(tmp_path / "adapter", made.one, base_model_name_or_path=None)
    edit_json(adapter / "adapter_config.json", revision=base_cid(made.other))
    with pytest.raises(WrongPart):
        check_parts(made.one, adapters=[Part("--adapter", adapter, "kind")])


def test_a_gguf_file_is_a_base_too(made: Made, tmp_path: Path) -> None:
    base = make_tiny_gguf(tmp_path / "base.gguf")
    check_parts(base, datastores=[Part("--shared-datastore", make_store(tmp_path / "store", base))])
    with pytest.raises(WrongPart):
        check_parts(base, datastores=[made.parts["datastores"]])


BREAK: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5000]),
    "no model": lambda path: path.write_bytes(b"root:x:0:0"),
}


@pytest.mark.parametrize("fault", BREAK)
def test_a_draft_model_that_cannot_be_read_is_refused(made: Made, tmp_path: Path, fault: str) -> None:
    draft = make_tiny_gguf(tmp_path / "draft.gguf")
    check_parts(made.one, draft_models=[Part("--draft-model", draft)])
    BREAK[fault](draft)
    with pytest.raises(WrongPart) as wrong:
        check_parts(made.one, draft_models=[Part("--draft-model", draft)])
    assert str(wrong.value).startswith("--draft-model: ")


@pytest.mark.parametrize("kind", KINDS)
def test_kolm_up_names_the_flag_as_it_was_typed_and_makes_nothing(made: Made, kind: str, tmp_path: Path) -> None:
    part, data = made.parts[kind], tmp_path / "data"
    value = f"{part.name}={part.path}" if part.name else str(part.path)
    done = kolm("up", "--model", made.other, part.flag, value, "--data-dir", data, *FREE)
    assert (done.code, done.err.startswith(f"kolm: {part.flag}: ")) == (2, True), done.err
    assert not data.exists()
