"""Blocks of checkpoints are found under every prefix, named by their digests, and refused if they are not whole."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.generation.drafting.answered_tokens import LEAST, AnsweredTokens, frequent_tokens
from services.generation.drafting.heads import HeadWeightsInvalid
from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.drafting.mtp.rounding import in_arithmetic, output_in_arithmetic
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.weights import has_own_head, open_weights
from tests.fakes.mtp_models import MODELS, make_mtp_model
from tests.fakes.tiny_model import SPECIAL_TOKENS, make_tiny_model

Tensors = dict[str, torch.Tensor]


def read(folder: Path) -> MtpBlock | None:
    return read_block(folder, read_config(folder))


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."])
@pytest.mark.parametrize("name", MODELS)
def test_a_block_is_found_under_every_prefix_and_named_by_its_tensors(name: str, prefix: str, tmp_path: Path) -> None:
    folders = [make_mtp_model(tmp_path / each, name, prefix=each) for each in {"mtp.", prefix}]
    blocks = [read(folder) for folder in folders]
    assert len({block.cid for block in blocks if block is not None}) == 1
    assert all(load_target(folder, cache_tokens=64) for folder in folders)
    assert all(map(has_own_head, folders))


def test_the_cid_is_that_of_the_block_alone(tmp_path: Path) -> None:
    first, same, other = (make_mtp_model(tmp_path / name) for name in ("first", "same", "other"))
    changed = load_file(same / "model.safetensors")
    changed["model.norm.weight"] += 0.5  # of the base
    save_file(changed, same / "model.safetensors")
    changed["mtp.norm.weight"] += 0.5
    save_file(changed, other / "model.safetensors")
    cids = [block.cid for block in map(read, (first, same, other)) if block is not None]
    assert cids[0] == cids[1] != cids[2]


def test_a_model_without_a_block_has_none(tmp_path: Path) -> None:
    assert read(make_tiny_model(tmp_path / "llama")) is None
    assert read(make_tiny_model(tmp_path / "qwen", **MODELS["qwen3_5"])) is None
    assert not any(has_own_head(tmp_path / name) for name in ("llama", "qwen", "missing"))


def _without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def _of_shape(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


FAULTS: dict[str, Callable[[Tensors], object]] = {
    "no joint matrix": _without("mtp.fc.weight"),
    "no norm of the hidden state": _without("mtp.pre_fc_norm_hidden.weight"),
    "half a layer": _without("mtp.layers.0.self_attn.v_proj.weight"),
    "a joint matrix of hidden states alone": _of_shape("mtp.fc.weight", 32, 32),
    "queries without gates": _of_shape("mtp.layers.0.self_attn.q_proj.weight", 64, 32),
    "an MLP of another size": _of_shape("mtp.layers.0.mlp.down_proj.weight", 32, 96),
    "a second layer": _of_shape("mtp.layers.1.mlp.down_proj.weight", 32, 64),
    "an unknown tensor": _of_shape("mtp.hc_head.weight", 32),
    "a value that is not a number": lambda tensors: tensors["mtp.norm.weight"].fill_(float("nan")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_block_that_is_not_whole_is_refused_and_its_model_is_served(fault: str, tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    FAULTS[fault](tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(HeadWeightsInvalid):
        read(folder)
    load_target(folder, cache_tokens=64)


def test_a_prefix_that_no_checkpoint_has_is_refused_with_the_model(tmp_path: Path) -> None:
    with pytest.raises(WeightsInvalid, match=r"draft\.mtp\."):
        load_target(make_mtp_model(tmp_path / "model", prefix="draft.mtp."), cache_tokens=64)


def test_rows_of_the_output_matrix_are_gathered_as_they_are_stored(tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    ids = np.array([1, 5, 300])
    block, whole = read_block(folder, read_config(folder), ids), open_weights(folder)
    assert block is not None
    assert block.output is not None
    assert np.array_equal(block.output.values(), whole.tensor("model.embed_tokens.weight").values()[ids])


def test_int8_takes_eight_bits_for_a_block_and_four_for_its_output_matrix() -> None:
    values = np.random.default_rng(1).standard_normal((8, 64), np.float32)
    plain, vector = StoredTensor.of_values("matrix", values), StoredTensor.of_values("vector", values[0])
    quantised = plain.rounded("q4_0")
    assert in_arithmetic(plain, "int8").storage == "q8_0"
    assert output_in_arithmetic(plain, "int8").storage == "q4_1"
    for tensor, arithmetic in ((plain, "float32"), (vector, "int8"), (quantised, "int8")):
        assert in_arithmetic(tensor, arithmetic) is tensor
    assert output_in_arithmetic(quantised, "int8") is quantised


def test_a_block_has_one_identifier_whichever_rows_it_drafts(tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    choices = (None, np.array([1, 5, 300]), np.array([1, 5, 301]))
    found = [read_block(folder, read_config(folder), each) for each in choices]
    assert len({block.cid for block in found if block is not None}) == 1


def test_tokens_of_eight_answers_are_drafted_the_most_frequent_first(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tiny_model(tmp_path / "model", vocab=400)).fast
    added, answered = len(tokenizer.get_added_tokens_decoder()), np.zeros(400, np.int64)
    high = [token for token in range(300, 400) if token not in tokenizer.get_added_tokens_decoder()][:3]
    answered[high] = LEAST, LEAST + 1, LEAST - 1
    for room, wanted in ((1, high[1:2]), (2, high[:2]), (3, high[:2])):
        found = frequent_tokens(tokenizer, added + room, 400, (), answered)
        assert found is not None
        assert set(high) & set(found.tolist()) == set(wanted)


def written(answered: AnsweredTokens) -> None:
    if answered._writing is not None:
        answered._writing.join()


def test_answers_are_counted_by_token_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state" / "counts.npy"
    answered = AnsweredTokens(path, 400)
    for _ in range(16):
        answered.add([7, 7, 9])
        answered.add([])
        written(answered)
    assert AnsweredTokens(path, 400).counts.nonzero()[0].tolist() == [7, 9]
    assert AnsweredTokens(path, 400).counts[7] == 16
    assert not caplog.records
    for damage in (b"", b"x" * 100, path.read_bytes()[:-8], pickle.dumps([1])):
        (tmp_path / "damaged").write_bytes(damage)
        assert not AnsweredTokens(tmp_path / "damaged", 400).counts.any()
    assert not AnsweredTokens(path, 384).counts.any()
    assert len(caplog.records) == 5


def test_a_folder_that_cannot_be_written_loses_counts_and_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    answered = AnsweredTokens(tmp_path / "file" / "counts.npy", 400)
    for _ in range(16):
        answered.add([7])
    written(answered)
    assert answered.counts[7] == 16
    assert caplog.records


def test_markup_and_the_lowest_ids_are_drafted(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tiny_model(tmp_path / "model", vocab=400)).fast
    added = {tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    found = frequent_tokens(tokenizer, 150, 400, (7,))
    assert found is not None
    assert len(found) == len(set(found.tolist())) == 150
    assert added | {7} <= set(found.tolist())
    assert sorted(found) == found.tolist()
    assert frequent_tokens(tokenizer, 0, 400, ()) is frequent_tokens(tokenizer, 400, 400, ()) is None
