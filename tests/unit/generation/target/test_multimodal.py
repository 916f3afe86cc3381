"""Multimodal checkpoints: the part for text is served, with its names, its configuration, its logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from services.generation.target.config.config import read_config
from services.generation.target.errors import TargetError
from services.generation.target.weights import check_weights, open_weights
from tests.fakes.tiny_multimodal import MODELS, make_tiny_multimodal
from tests.fakes.tiny_targets import TOKENS, logits_of, target_of


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
    with pytest.raises(TargetError, match="text_config: None; expected an object"):
        read_config(tmp_path)
