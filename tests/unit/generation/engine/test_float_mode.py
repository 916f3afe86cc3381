"""Sampling keeps subnormals and rounds to nearest, whatever a library has told the thread before the engine starts."""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.engine import Engine
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.canonical.kernels import compilation
from services.generation.target.canonical.kernels.machine import this_machine
from services.generation.target.canonical.kernels.team import float_mode
from tests.fakes.decoder import LetterDecoder
from tests.fakes.engine_runs import CHEAP_ROWS
from tests.fakes.table_target import TableTarget

FLUSHING = 0x9FC0 if this_machine().triple.startswith("x86") else 1 << 24  # FTZ and DAZ; FZ
UPWARDS = 0x5F80 if this_machine().triple.startswith("x86") else 1 << 22
SUBNORMAL = np.float32(1e-39)


@pytest.fixture
def told() -> Iterator[Callable[[int], None]]:
    """Sets the mode of this thread, which threads that it starts inherit."""
    tell = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compilation.kernels("rows")["set_float_mode"])
    yield tell
    tell(float_mode(this_machine()))


def outcome() -> Outcome:
    """Of penalties and biases over logits that are subnormal or need rounding, in an engine with a thread of its own.

    Every row has eight tokens; what is best under penalties is a matter of the subnormals' last bits.
    """
    bits = np.random.default_rng(0).integers(1, 1 << 22, (8, 8), np.int32)
    table = bits.view(np.float32)
    sampling = SamplingParams(
        max_tokens=24, repetition_penalty=1.3, presence_penalty=0.0, frequency_penalty=0.0,
        logit_bias=((3, 1e-39), (5, -1e-39)), ignore_eos=True, logprobs=2,
    )  # fmt: skip
    core = EngineCore(TableTarget(table), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    engine, events = Engine(core), queue.SimpleQueue[Event]()
    engine.start()
    try:
        engine.submit(EngineRequest("r", (1, 2), sampling), events.put)
        while not isinstance(event := events.get(timeout=60), Finished):
            pass
    finally:
        engine.stop()
    return event.outcome


@pytest.mark.parametrize("mode", [FLUSHING, UPWARDS])
def test_the_engines_thread_computes_in_its_own_mode(mode: int, told: Callable[[int], None]) -> None:
    expected = outcome()
    told(mode)
    found = outcome()
    if mode == FLUSHING:
        assert SUBNORMAL * np.float32(0.5) == 0.0, "this thread was not told"
    told(float_mode(this_machine()))
    assert SUBNORMAL * np.float32(0.5) > 0.0
    assert found.token_ids == expected.token_ids
    assert found.stream_digest == expected.stream_digest
    assert found.margins == expected.margins
    assert expected.finish_reason == "length"
    assert 0.0 < max(expected.margins) < float(np.finfo(np.float32).tiny)
