"""Weights of a transformers directory: the bytes that the safetensors library reads, mapped; damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.generation.target.config.config import read_config
from services.generation.target.errors import TargetError, WeightsInvalid
from services.generation.target.files.safetensors import SafetensorsFiles
from services.generation.target.weights import checked_weights
from tests.examples import examples
from tests.fakes.tiny_model import make_tiny_model

NORM = "model.norm.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_the_bits_that_torch_reads(model: Path, dtype: torch.dtype) -> None:
    path = model / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    config = read_config(model)
    weights = checked_weights(model, config)
    assert weights.names() == tensors.keys()
    for name, expected in tensors.items():
        tensor = weights.tensor(name)
        assert f"torch.{tensor.storage}" == str(dtype)
        assert tensor.shape == weights.shape(name) == tuple(expected.shape)
        assert tensor.values().tobytes() == expected.float().numpy().tobytes()
        assert not tensor.data.flags.owndata


def test_a_tensor_may_lie_anywhere(tmp_path: Path) -> None:
    """Headers are padded to eight bytes, but no rule aligns a tensor behind one of odd length."""
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    header = {
        "odd": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        NORM: {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" + values.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(data)
    weights = SafetensorsFiles.open(tmp_path)
    assert weights.tensor(NORM).values().tolist() == values.tolist()
    weights.tensor(NORM).check_finite()
    with pytest.raises(WeightsInvalid, match="odd has dtype BOOL; expected one of F32, BF16, F16"):
        weights.storage("odd")


def test_a_file_truncated_anywhere_is_refused(model: Path) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for end in (*range(0, 4000, 61), *range(4000, len(whole), 20011), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(WeightsInvalid, match=r"model\.safetensors: not a whole safetensors file"):
            SafetensorsFiles.open(model)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_never_do_more_than_be_refused(model: Path, data: st.DataObject) -> None:
    path, config = model / "model.safetensors", read_config(model)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from(list(b'0129[]{}",:-')))
    path.write_bytes(damaged)
    try:
        weights = checked_weights(model, config)
        for name in weights.names() - {"model.rotary_emb.inv_freq"}:
            assert weights.tensor(name).values().shape == weights.shape(name)
    except TargetError as error:
        assert str(model) in str(error)  # noqa: PT017
    finally:
        path.write_bytes(whole)
