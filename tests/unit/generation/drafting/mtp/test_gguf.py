"""MTP blocks in a model's GGUF file, and in a sidecar file next to it."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.drafting.heads import HeadError, HeadWeightsInvalid
from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.drafting.mtp.mtp_pass import MtpPass
from services.generation.target.arrays import Float32
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import TargetError, WeightsInvalid
from tests.examples import examples
from tests.fakes.converted_gguf import convert
from tests.fakes.mtp_models import MODELS, make_mtp_model, write_apart
from tests.fakes.rows import tree_rows
from tests.fakes.tiny_model import target_of
from tests.unit.generation.drafting.mtp.test_mtp_pass import features_of

TOKENS = [(7 * i * i + 3 * i) % 320 for i in range(40)]
DRAFTED = [300, 4, 17, 250]


def states_of(target: CpuTarget, block: MtpBlock) -> Float32:
    computing, table = MtpPass(block, target, 8), list[int]()
    computing.blocks.extend(table, len(TOKENS))
    return computing.read(tree_rows(table, 0, TOKENS[1:]), features_of(target, TOKENS)[:-1]).states


def read(path: Path) -> MtpBlock:
    block = read_block(path, read_config(path))
    assert block is not None
    return block


@pytest.mark.parametrize("name", MODELS)
def test_a_block_in_gguf_computes_the_states_of_its_safetensors(name: str, tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model", name)
    path = convert(folder, tmp_path / "model.gguf")
    assert np.array_equal(*(states_of(target_of(each), read(each)) for each in (folder, path)))


def test_a_missing_last_norm_is_the_model_s(tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    path = convert(
        folder, tmp_path / "model.gguf", change_tensors=lambda t: t.pop("blk.2.nextn.shared_head_norm.weight")
    )
    assert np.array_equal(read(path).tensors["mtp.norm.weight"].values(), read(path).base_norm)


@pytest.mark.parametrize("sidecar", ["mtp-tiny-Q4_K_M.gguf", "mtp-tiny-Q8_0.gguf", "mtp-tiny-BF16.gguf"])
def test_a_block_is_found_in_a_sidecar_of_its_model(sidecar: str, tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    model = tmp_path / "tiny-Q4_K_M.gguf"
    write_apart(folder, model, tmp_path / sidecar)
    assert np.array_equal(states_of(target_of(model), read(model)), states_of(target_of(folder), read(folder)))
    load_target(model, cache_tokens=64)


def test_a_block_is_found_in_a_sidecar_in_parts(tmp_path: Path) -> None:
    folder, model = make_mtp_model(tmp_path / "model"), tmp_path / "tiny-Q4_K_M.gguf"
    write_apart(folder, model, tmp_path / "mtp-tiny-Q8_0.gguf", part_tensors=6)
    last = max(tmp_path.glob("mtp-*-of-*.gguf"))
    assert np.array_equal(states_of(target_of(model), read(model)), states_of(target_of(folder), read(folder)))
    last.unlink()
    with pytest.raises(WeightsInvalid, match=last.name):
        read(model)


def test_a_sidecar_of_another_model_is_ignored(tmp_path: Path) -> None:
    write_apart(make_mtp_model(tmp_path / "model"), model := tmp_path / "tiny.gguf", tmp_path / "mtp-other-Q8_0.gguf")
    assert read_block(model, read_config(model)) is None


def test_rows_of_a_smaller_output_matrix_keep_their_tokens(tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    write_apart(folder, model := tmp_path / "tiny.gguf", tmp_path / "mtp-tiny.gguf", DRAFTED)
    block, embeddings = read(model), target_of(folder).embed(np.array(sorted(DRAFTED)))
    assert block.target_ids.tolist() == sorted(DRAFTED)
    assert block.output is not None
    assert np.array_equal(block.output.values(), embeddings)


def test_the_identifier_of_a_sidecar_names_the_tokens_of_its_rows(tmp_path: Path) -> None:
    folder, model = make_mtp_model(tmp_path / "model"), tmp_path / "tiny.gguf"
    cids = set()
    for tokens in (DRAFTED, DRAFTED[::-1]):  # the same rows in the same order, for other tokens
        write_apart(folder, model, tmp_path / "mtp-tiny.gguf", tokens, rows=DRAFTED)
        cids.add(read(model).cid)
    assert len(cids) == 2


@pytest.mark.parametrize("tokens", [[4, 4, 9], [-1, 2], [1, 320]])
def test_repeated_tokens_and_tokens_outside_the_vocabulary_are_refused(tokens: list[int], tmp_path: Path) -> None:
    write_apart(make_mtp_model(tmp_path / "model"), model := tmp_path / "tiny.gguf", tmp_path / "mtp-tiny.gguf", tokens)
    with pytest.raises(HeadWeightsInvalid):
        read(model)


def test_a_sidecar_without_a_block_is_refused(tmp_path: Path) -> None:
    folder = make_mtp_model(tmp_path / "model")
    model = tmp_path / "tiny.gguf"
    write_apart(folder, model, tmp_path / "mtp-tiny.gguf")
    (tmp_path / "mtp-tiny.gguf").write_bytes(model.read_bytes())
    with pytest.raises(HeadWeightsInvalid):
        read(model)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A model, and the bytes of its sidecar."""
    folder = tmp_path_factory.mktemp("pair")
    write_apart(make_mtp_model(folder / "model"), folder / "tiny.gguf", folder / "mtp-tiny.gguf", DRAFTED)
    return folder / "tiny.gguf", (folder / "mtp-tiny.gguf").read_bytes()


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_bytes_of_a_sidecar_raise_nothing_but_what_is_documented(pair: tuple[Path, bytes], data: st.DataObject) -> None:
    model, whole = pair
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, 14_000) | st.integers(0, len(whole) - 1), min_size=1, max_size=5)):
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]))
    model.with_name("mtp-tiny.gguf").write_bytes(damaged)
    with suppress(HeadError, TargetError):
        read_block(model, read_config(model))
