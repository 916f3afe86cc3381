"""Models with parts of their own: gpt-oss, and the text half of multimodal ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import TargetError
from services.generation.target.weights import check_weights, open_weights
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_families import FAMILIES, MODELS, as_published, draw_vectors, make_tiny_multimodal
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model, target_of
from tests.numerics.arithmetic import assert_same_bits

EXPERTS = "model.layers.0.mlp.experts"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Experts in MXFP4, and the same values in float32."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    members = FAMILIES["gpt_oss"] | {"layers": 2, "intermediate_size": 96}
    directory = draw_vectors(make_tiny_model(folder / "drawn", **members))
    as_published(directory, folder / "quantised", folder / "widened")
    return folder / "quantised", folder / "widened"


def test_experts_are_what_transformers_makes_of_them(directories: tuple[Path, Path]) -> None:
    weights, stored = open_weights(directories[0]), load_file(directories[0] / "model.safetensors")
    for stacked in ("gate_up_proj", "down_proj"):
        parts = (torch.from_numpy(stored[f"{EXPERTS}.{stacked}_{part}"]) for part in ("blocks", "scales"))
        expected = convert_moe_packed_tensors(*parts, dtype=torch.float32).numpy()  # [experts, in, out]
        for number in range(6):
            for module, first in (("gate_proj", 0), ("up_proj", 1)) if stacked == "gate_up_proj" else ((stacked, 0),):
                found = weights.tensor(f"{EXPERTS}.{number}.{module}.weight")
                step = 2 if stacked == "gate_up_proj" else 1
                assert found.storage == "mxfp4"
                assert (found.values() == expected[number].T[first::step]).all()


@pytest.mark.slow
def test_storage_changes_no_bit(directories: tuple[Path, Path], tmp_path: Path) -> None:
    quantised, widened = directories
    path = convert(widened, tmp_path / "m.gguf", kind_of_experts=GGMLQuantizationType.MXFP4)
    assert open_weights(path).storage(f"{EXPERTS}.0.up_proj.weight") == "mxfp4"
    expected = logits_of(target_of(widened))
    assert_same_bits(logits_of(target_of(quantised)), expected)
    assert_same_bits(logits_of(target_of(path), [1] * 40 + [50]), expected)


FAULTS: dict[str, tuple[str, int | type | None, str]] = {
    "blocks of another type": (f"{EXPERTS}.down_proj_blocks", np.int32, r"down_proj_blocks has dtype I32"),
    "blocks of another type of a byte": (f"{EXPERTS}.down_proj_blocks", np.int8, r"down_proj_blocks has dtype I8"),
    "scales of another type": (f"{EXPERTS}.down_proj_scales", np.float32, r"down_proj_blocks .* scales, all in U8"),
    "an exponent that is no number": (f"{EXPERTS}.down_proj_scales", 255, "has a value that is infinite"),
    "scales that are missing": (f"{EXPERTS}.down_proj_scales", None, r"down_proj_blocks has .*; expected all experts'"),
    "blocks that are missing": (f"{EXPERTS}.down_proj_blocks", None, r"experts\.0\.down_proj\.weight.* missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(fault: str, directories: tuple[Path, Path], tmp_path: Path) -> None:
    name, value, message = FAULTS[fault]
    tensors = load_file(directories[0] / "model.safetensors")
    tensor = tensors.pop(name)
    if isinstance(value, type):
        tensors[name] = tensor.astype(value)
    elif value is not None:
        tensor.reshape(-1)[-1] = value
        tensors[name] = tensor
    for path in directories[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TargetError, match=message):
        load_target(tmp_path, cache_tokens=64)


@pytest.mark.parametrize("family", MODELS)
def test_the_part_for_text_has_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_tiny_multimodal(tmp_path, family)
    config = read_config(tmp_path)
    assert config.eos_token_ids == (1,)
    check_weights(open_weights(tmp_path), config)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(target_of(tmp_path)), expected, rtol=1e-4, atol=2e-5)


def test_a_checkpoint_without_its_text_part_is_refused(tmp_path: Path) -> None:
    document = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(TargetError, match="text_config"):
        read_config(tmp_path)
