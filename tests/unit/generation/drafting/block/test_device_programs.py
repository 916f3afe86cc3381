"""A block head's passes on its target's device have the bits of its passes on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.drafting.block.block_checkpoint import BlockHead
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.drafting.block.device_programs import DevicePrograms
from services.generation.target.arrays import Float32
from services.generation.target.cpu import load_target
from services.generation.target.gpu.gpu_target import load_gpu_target
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from tests.fakes.heads import random_block
from tests.fakes.rows import chunk_rows
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.arithmetic import assert_same_bits

pytestmark = pytest.mark.usefixtures("pocl_device")

LENGTH, BESIDE = 300, 14  # context: more than a pass has room for; sequences whose logits take two products
FROM_MASKS: dict[str, Any] = {
    "from_first": False, "own_output": False, "draft_vocab_size": 384, "markov_rank": 0, "confidence": False,
    "confidence_reads_token": False,
}  # fmt: skip
CHOICES: dict[str, dict[str, Any]] = {
    "DSpark": {},
    "DFlash, biases": {**FROM_MASKS, "attention_bias": True},
    "own embeddings, rows of 48, windows": {"own_embeddings": True, "hidden_size": 48, "windows": (0, 32)},
    "DFlash2": {**FROM_MASKS, "taps": 3, "tap_group": 16, "selector_rank": 8, "selector_top": 6},
}


def computed(head: BlockHead, target: Target, programs: DevicePrograms | None = None) -> Iterator[Float32]:
    """States, logits and logits after tokens: of a block that context overwrites, of one after it, beside others."""
    random, config = np.random.default_rng(5), head.config
    passes = BlockPass(head, target, 2 * BESIDE, target.config.context_length, arithmetic="int8", programs=programs)
    features = random.standard_normal((LENGTH, 2 * config.target_hidden_size)).astype(np.float32)
    tokens = random.integers(0, config.vocab_size, (BESIDE, config.block_size))
    tokens[:, 1:] = config.mask_token
    tables: list[list[int]] = [[] for _ in tokens]
    for number, table in enumerate(tables):
        passes.blocks.extend(table, (0 if number else LENGTH) + config.block_size)
    for start, end, together in ((0, 280, 1), (280, LENGTH, 1), (LENGTH, LENGTH, BESIDE)):
        passes.store(chunk_rows(tables[0], start, [0] * (end - start), want_last=False), features[start:end])
        rows = RowsBuilder()
        for number, table in enumerate(tables[:together]):
            rows.add_block(table, 0 if number else end, tokens[number].tolist(), want_first=config.from_first)
        out = passes.draft(rows.build())
        before = random.integers(0, config.vocab_size, len(out.states)).tolist()
        yield from (out.states, out.logits, passes.add_previous(out.logits, out.states, before))


@pytest.mark.slow
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_a_head_has_the_bits_of_the_cpu(choices: dict[str, Any], tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, layers=4)
    on_device, on_cpu = load_gpu_target(model, device="opencl", cache_tokens=128), load_target(model, cache_tokens=128)
    head = random_block(on_cpu.config, **choices)
    programs = DevicePrograms(head, on_device, 2 * BESIDE)
    for found, expected in zip(computed(head, on_device, programs), computed(head, on_cpu), strict=True):
        assert_same_bits(*map(np.ascontiguousarray, (found, expected)))
