"""The tokens that end a sequence of a directory: of its configuration, of its tokenizer, and by their names."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import ConfigInvalid
from services.generation.target.probe import measure_profile
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import END, make_tiny_model, tiny_tokenizer


def ends(
    folder: Path, generation: Any = None, added: dict[str, int] | None = None, **tokenizer: Any
) -> tuple[int, ...]:
    """Ids that end a sequence of a model with this EOS in generation_config.json, and such a tokenizer."""
    model = make_tiny_model(folder / "model", layers=1, eos_token_id=5)
    if generation is None:
        (model / "generation_config.json").unlink(missing_ok=True)
    else:
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    tokens = [{"id": index, "content": text} for text, index in (added or {}).items()]
    (model / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = read_config(model)
    assert set(config.joined_end_ids) <= set(config.eos_token_ids)
    return config.eos_token_ids


@pytest.mark.parametrize(
    ("generation", "added", "tokenizer", "expected"),
    [
        (None, {}, {}, (5,)),
        (2, {}, {}, (2,)),
        ([7, 2], {}, {}, (2, 7)),
        (2, {"<stop>": 1}, {"eos_token": "<stop>"}, (1, 2)),
        (2, {"<stop>": 1}, {"eos_token": {"content": "<stop>", "special": True}}, (1, 2)),
        (2, {}, {"eos_token": "<stop>", "added_tokens_decoder": {"1": {"content": "<stop>"}}}, (1, 2)),
        (2, {}, {"eos_token": "<stop>"}, (2,)),
        (0, {"<|im_end|>": 3, "<|im_start|>": 4}, {"eos_token": None}, (0, 3)),
        (0, {"<|im_end|>": 384}, {}, (0,)),
        (0, {"<|return|>": 3, "<|call|>": 4, "<|end|>": 6}, {"eos_token": "<|return|>"}, (0, 3, 4)),
        (6, {"<|return|>": 3, "<|call|>": 4, "<|end|>": 6}, {}, (3, 4, 6)),
    ],
)
def test_ends_of_the_tokenizer_join_those_of_the_configuration(
    tmp_path: Path, generation: Any, added: dict[str, int], tokenizer: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert ends(tmp_path, generation, added, **tokenizer) == expected


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("found", [True, [2, True], 2.0, "2", [2, "<stop>"], {"id": 2}, [[2]]])
def test_an_eos_that_is_no_id_is_refused_by_its_file(tmp_path: Path, name: str, found: Any) -> None:
    model = make_tiny_model(tmp_path, layers=1, eos_token_id=5)
    document = json.loads((model / "config.json").read_text()) if name == "config.json" else {}
    (model / "generation_config.json").unlink(missing_ok=True)
    (model / name).write_text(json.dumps(document | {"eos_token_id": found}))
    with pytest.raises(ConfigInvalid, match=f"{name}.*eos_token_id"):
        read_config(model)


def test_ids_outside_of_the_vocabulary_are_ignored_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ends(tmp_path, [-1, 2, 384]) == (2,)
    (warning,) = caplog.records
    assert "eos_token_id [-1, 384]" in warning.getMessage()


@pytest.mark.parametrize(("vocab", "ids"), [
    ({"<stop>": 9}, (5, 9)), ([["a", 0.0]] * 9 + [["<stop>", 0.0]], (5, 9)),
    *(({"<stop>": index}, (5,)) for index in (True, 9.0, "9", None, -1, 384)),
])  # fmt: skip
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_an_eos_joins_that_only_the_vocabulary_has_whichever_file_names_it(
    tmp_path: Path, name: str, vocab: Any, ids: tuple[int, ...]
) -> None:
    model = make_tiny_model(tmp_path, layers=1, eos_token_id=5)
    (model / "generation_config.json").unlink(missing_ok=True)
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    (model / "tokenizer_config.json").write_text("{}")
    (model / name).write_text(json.dumps({"eos_token": "<stop>"}))
    assert read_config(model).eos_token_ids == ids


@pytest.mark.parametrize("index", ["9" * 5000, "\u00b2", "-1", "384"])
def test_an_added_token_of_an_index_outside_of_the_vocabulary_ends_nothing(tmp_path: Path, index: str) -> None:
    assert ends(tmp_path, 2, added_tokens_decoder={index: {"content": "<|im_end|>"}}) == (2,)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_a_file_that_is_not_in_form_is_refused_by_its_name(tmp_path: Path, name: str, content: bytes) -> None:
    model = make_tiny_model(tmp_path, layers=1)
    (model / "tokenizer_config.json").unlink()
    (model / name).write_bytes(content)
    with pytest.raises(ConfigInvalid, match=name):
        read_config(model)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"added_tokens": 1}),
        ("tokenizer.json", {"model": 1}),
        ("tokenizer_config.json", {"added_tokens_decoder": 1}),
    ],
)
def test_a_mistyped_member_of_a_tokenizer_is_refused_by_its_file(tmp_path: Path, name: str, content: Any) -> None:
    model = make_tiny_model(tmp_path, layers=1)
    (model / name).write_text(json.dumps({"eos_token": "<stop>"} | content))
    if name == "tokenizer.json":
        (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<stop>"}))
    with pytest.raises(ConfigInvalid, match=name):
        read_config(model)


@pytest.mark.parametrize(
    ("kind", "eos", "expected", "joined"),
    [("llama", None, (2,), (2,)), ("llama", 384, (2,), (2,)), ("llama", 7, (7,), ()), ("gpt2", None, (), ())],
)
def test_a_sentence_piece_file_without_an_eos_of_the_vocabulary_ends_at_the_usual_id(
    tmp_path: Path, kind: str, eos: int | None, expected: tuple[int, ...], joined: tuple[int, ...]
) -> None:
    def change(metadata: dict[str, Any]) -> None:
        key = "tokenizer.ggml.eos_token_id"
        metadata["tokenizer.ggml.model"] = kind
        metadata["tokenizer.ggml.tokens"][:4] = ["<unk>", "<begin>", "<stop>", "<other>"]
        metadata.update({key: eos} if eos is not None else {})
        if eos is None:
            del metadata[key]

    config = read_config(make_tiny_gguf(tmp_path / "m.gguf", change_metadata=change))
    assert config.eos_token_ids == expected
    assert config.joined_end_ids == joined


def test_ends_that_a_tokenizer_adds_are_part_of_the_profile(tmp_path: Path) -> None:
    """A receipt of an older version, which did not stop at these tokens, has another profile: no deviation."""
    named = make_tiny_model(tmp_path / "named", layers=1)
    joined = make_tiny_model(tmp_path / "joined", layers=1, eos_token_id=5)
    (joined / "generation_config.json").unlink(missing_ok=True)
    first, second = (measure_profile(load_target(model)).document for model in (named, joined))
    assert "joined_end_ids" not in first
    assert second["joined_end_ids"] == [tiny_tokenizer(384).convert_tokens_to_ids(END)]
