"""Weights of GGUF files: the same tensors as transformers' own loading gives, and clear words about damaged files."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from services.generation.engine.text.gguf_tokenizer import gguf_tokenizer
from services.generation.target.config.config import read_config
from services.generation.target.errors import ModelNotFound, TargetError, WeightsInvalid
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.identity import base_cid, tokenizer_cid
from services.generation.target.weights import checked_weights
from tests.examples import examples
from tests.fakes.tiny_gguf import make_tiny_gguf

CASES = [*(("llama", storage) for storage in LAYOUTS), ("qwen2", "q4_1"), ("qwen3", "q4_k")]
Q = "blk.0.attn_q.weight"
IQ2_XXS, I32 = 16, 26


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "storage"), CASES)
def test_every_tensor_is_what_transformers_makes_of_it(tmp_path: Path, architecture: str, storage: str) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", architecture=architecture, storage=storage, hidden=512)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    weights = checked_weights(path, read_config(path))
    assert weights.names() == loaded.keys()
    assert weights.storage("model.layers.0.self_attn.q_proj.weight") == storage
    for name, expected in loaded.items():
        tensor = weights.tensor(name)
        tensor.check_finite()
        assert tensor.values().tobytes() == expected.numpy().tobytes(), name
        assert tensor.shape == weights.shape(name) == tuple(expected.shape)


def test_matrices_are_mapped_not_copied(tmp_path: Path) -> None:
    file = GgufFile.open(make_tiny_gguf(tmp_path / "m.gguf"))
    assert not file.tensor("model.embed_tokens.weight").data.flags.owndata
    assert not file.tensor("model.embed_tokens.weight").data.flags.writeable


def poison(tensors: dict[str, Any]) -> None:
    rows = tensors[Q][1].copy()
    rows[-1, -20:-18] = np.array([np.nan], "<f2").view(np.uint8)
    tensors[Q] = (tensors[Q][0], rows)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a tensor missing": (lambda t: t.pop(Q), r"self_attn\.q_proj\.weight is missing"),
    "a tensor of another layer missing": (
        lambda t: t.pop("blk.1.ffn_up.weight"), r"model\.layers\.1\.mlp\.up_proj\.weight missing",
    ),
    "a tensor too many": (lambda t: t.update({"blk.0.extra.weight": t[Q]}), r"blk\.0\.extra\.weight not known"),
    "a layer too many": (
        lambda t: t.update({"blk.2.ffn_up.weight": t["blk.0.ffn_up.weight"]}),
        r"model\.layers\.2\.mlp\.up_proj\.weight not known",
    ),
    "a name that is a template": (
        lambda t: t.update({"{}{x}.weight": (0, np.zeros((2, 2, 4), np.float32))}), r"tensor '\{\}\{x\}\.weight' has",
    ),
    "a number with a leading zero": (lambda t: t.update({"blk.00.attn_q.weight": t[Q]}), r"blk\.00\.attn_q"),
    "a tensor under both names": (
        lambda t: t.update({"model.norm.weight": t["output_norm.weight"]}), "has two names",
    ),
    "a tensor of another shape": (
        lambda t: t.update({"blk.0.ffn_up.weight": t["blk.0.attn_k.weight"]}),
        r"up_proj\.weight has shape \[128, 256\], by the configuration \[512, 256\]",
    ),
    "a quantised vector": (
        lambda t: t.update({"output_norm.weight": (8, np.zeros(34 * 8, np.uint8))}), "is a vector stored as q8_0",
    ),
    "heads that do not share the rows": (
        lambda t: t.update({"blk.0.attn_k.weight": (t[Q][0], t[Q][1][:130])}), r"k_proj\.weight has shape \[130, 256\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_with_other_tensors_is_refused(tmp_path: Path, fault: str) -> None:
    change, words = FAULTS[fault]
    path = make_tiny_gguf(tmp_path / "m.gguf", layers=2, change_tensors=change)
    with pytest.raises(WeightsInvalid, match=words) as refused:
        checked_weights(path, read_config(path))
    assert str(path) in str(refused.value)


def test_an_unsupported_type_is_named_with_the_supported_ones(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", change_tensors=lambda t: t.update({Q: (10, np.zeros((256, 84), "u1"))}))
    with pytest.raises(WeightsInvalid, match=r"attn_q\.weight"):
        GgufFile.open(path)


def test_a_weight_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    file = GgufFile.open(make_tiny_gguf(tmp_path / "m.gguf", change_tensors=poison))
    with pytest.raises(WeightsInvalid, match=r"q_proj\.weight"):
        file.tensor("model.layers.0.self_attn.q_proj.weight").check_finite()


def test_heads_that_do_not_share_rows_in_pairs_are_refused(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", change_metadata=lambda m: m.update({"llama.attention.head_count": 7}))
    with pytest.raises(WeightsInvalid):
        GgufFile.open(path).tensor("model.layers.0.self_attn.q_proj.weight")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file: its head takes 9 of its 43 KB."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return make_tiny_gguf(path, hidden=64, storage="q8_0", tied=True).read_bytes()


def head_of(data: bytes) -> int:
    """The offset of the first tensor."""
    return data.index(b"output_norm.weight") + 60


def test_other_beginnings_are_refused_with_their_names(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    for data, words in (
        (b"", "cannot be read"),
        (b"GGU", "ends at byte 3"),
        (b"LLAM" + whole[4:], "begins with b'LLAM', expected b'GGUF'"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1 is not supported; supported: 2 and 3"),
        (whole[:4] + struct.pack(">I", 3) + whole[8:], "big endian"),
        (whole[:8] + struct.pack("<Q", 2**63) + whole[16:], "damaged"),
        (whole[:16] + struct.pack("<Q", 2**63) + whole[24:], "damaged"),
        (whole[:24] + struct.pack("<Q", 2**63) + whole[32:], "9223372036854775808 more bytes after byte 32"),
    ):
        path.write_bytes(data)
        with pytest.raises(WeightsInvalid, match=words):
            GgufFile.open(path)
    with pytest.raises(ModelNotFound):
        GgufFile.open(tmp_path / "other.gguf")
    with pytest.raises(WeightsInvalid):
        GgufFile.open(tmp_path)


def load(path: Path) -> None:
    """All that is done with a file before it is served, and every weight read."""
    config = read_config(path)
    weights = checked_weights(path, config)
    for name in weights.names():
        tensor = weights.tensor(name)
        tensor.check_finite()
        assert tensor.values().shape == tensor.shape
    assert gguf_tokenizer(path).backend_tokenizer.encode("The ledger").ids
    assert base_cid(path) != tokenizer_cid(path)


def survives(path: Path) -> bool:
    """Whether it loads; every other outcome is an error of the family."""
    try:
        load(path)
    except TargetError as error:
        assert str(path) in str(error) or "weights: " in str(error)  # noqa: PT017
        return False
    return True


def test_the_whole_file_loads(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    load(path)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    head = head_of(whole)
    for end in (*range(0, head, 97), *range(head - 200, head), *range(head, len(whole) - 40, 5003), len(whole) - 33):
        path.write_bytes(whole[:end])
        with pytest.raises(WeightsInvalid):
            GgufFile.open(path)


FUZZ = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
def test_flipped_bytes_never_do_more_than_be_refused(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    path, damaged = tmp_path / "m.gguf", bytearray(whole)
    places = st.integers(0, head_of(whole)) | st.integers(0, len(whole) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=6)):
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]))
    path.write_bytes(damaged)
    survives(path)


@FUZZ
@given(data=st.data())
def test_lying_sizes_never_do_more_than_be_refused(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    """Every length, count, size and offset is eight bytes somewhere, or four."""
    path, damaged = tmp_path / "m.gguf", bytearray(whole)
    lies = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
    for at in data.draw(st.lists(st.integers(4, head_of(whole)), min_size=1, max_size=3)):
        width = data.draw(st.sampled_from([4, 8]))
        damaged[at : at + width] = data.draw(lies).to_bytes(8, "little")[:width]
    path.write_bytes(damaged)
    survives(path)
