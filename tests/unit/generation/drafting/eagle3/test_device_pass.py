"""A head's passes on its target's device have the bits of its passes on the CPU."""

from typing import Any

import numpy as np
import pytest

from services.generation.drafting.eagle3.checkpoint import Head
from services.generation.drafting.eagle3.device_pass import DeviceHeadPass
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.stepping.entry_pass import Entries, HeadOutput
from services.generation.target.gpu.gpu_target import GpuTarget, load_gpu_target
from tests.fakes.heads import random_head
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.arithmetic import assert_same_bits

pytestmark = pytest.mark.usefixtures("pocl_device")

LENGTH = 300  # entries: more than a pass has room for
CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases, head norms": {"attention_bias": True, "output_bias": True, "mlp_bias": True, "head_norms": True},
    "own embeddings, rows of 48": {"own_embeddings": True, "hidden_size": 48},
    "three layers, normed residual": {"layers": 3, "norm_before_residual": True, "norm_before_fc": True},
    "a norm of each stream, normed output": {"fc_norm": True, "norm_output": True, "head_dim": 24},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> GpuTarget:
    path = make_tiny_model(tmp_path_factory.mktemp("base"), layers=4)
    return load_gpu_target(path, device="opencl", cache_tokens=2 * 64)


def computed(entries: Entries, head: Head) -> list[HeadOutput]:
    """A prompt, of which the last entry is wanted; a chain whose entries all are; a tree on its last state."""
    random = np.random.default_rng(5)
    features = random.standard_normal((LENGTH + 3, 3 * head.config.target_hidden_size)).astype(np.float32)
    tokens = random.integers(0, head.config.vocab_size, LENGTH + 8).tolist()
    table, found = list[int](), list[HeadOutput]()
    entries.blocks.extend(table, LENGTH + 8)
    for wanted in (False, True):
        entries.read(chunk_rows(table, 0, tokens[:LENGTH], want_last=wanted), features[:LENGTH])
    out = entries.read(tree_rows(table, LENGTH, tokens[LENGTH : LENGTH + 3], [-1, 0, 1]), features[LENGTH:])
    found.append(HeadOutput(out.states.copy(), out.logits.copy()))
    rows = tree_rows(table, LENGTH + 3, tokens[LENGTH + 3 :], [-1, 0, 0, 1, 1])
    found.append(entries.step(rows, np.repeat(found[0].states[-1:], 5, axis=0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_a_head_has_the_bits_of_the_cpu(choices: dict[str, Any], target: GpuTarget) -> None:
    head, config = random_head(target.config, **choices), target.config
    on_cpu = HeadPass(head, target.embed, 6, config.context_length, arithmetic="int8")
    for found, expected in zip(computed(DeviceHeadPass(head, target, 6), head), computed(on_cpu, head), strict=True):
        assert_same_bits(found.logits, expected.logits)
        assert_same_bits(np.ascontiguousarray(found.states), np.ascontiguousarray(expected.states))


def test_a_position_past_a_context_and_a_draft_is_refused(target: GpuTarget) -> None:
    entries = DeviceHeadPass(random_head(target.config), target, 2)
    rows = tree_rows([0, 1, 1], 128, [1])
    with pytest.raises(ValueError, match="position 128"):
        entries.step(rows, np.zeros((1, target.config.hidden_size), np.float32))
