"""Targets that behave badly on purpose, around a real one. All implement the production Protocol."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.arrays import Float32, Int64
from services.generation.target.cpu import load_target
from services.generation.target.program.kernel_probe import KernelReport
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput, Shared, Target


class WrappedTarget:
    """The wrapped target, for a subclass that changes one thing."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.config, self.blocks, self.numerics = target.config, target.blocks, target.numerics
        self.threads, self.device = target.threads, target.device
        self.base_cid, self.tokenizer_cid, self.adapters = target.base_cid, target.tokenizer_cid, target.adapters

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        return self._target.forward(rows, feature_layers)

    def probe_kernels(self) -> KernelReport:
        return self._target.probe_kernels()

    def abridged(self) -> Target:
        return self

    def embed(self, tokens: Int64) -> Float32:
        return self._target.embed(tokens)

    def unembed(self, states: Float32) -> Float32:
        return self._target.unembed(states)

    def shared(self) -> Shared:
        return self._target.shared()

    def move(self, sources: list[int], targets: list[int]) -> None:
        self._target.move(sources, targets)

    def release_memory(self) -> None:
        self._target.release_memory()

    def block_content(self, block: int) -> bytes:
        return self._target.block_content(block)

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        self._target.fill_block(block, content)


class WidthDependentTarget(WrappedTarget):
    """Bit-exact until `deviating` is set; from then on a row's logits depend on how many rows are wanted beside it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.deviating = False

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = super().forward(rows, feature_layers)
        if self.deviating and len(rows.wanted) > 1:
            return PassOutput(np.ascontiguousarray(self.turned(computed.logits, len(rows.wanted))), computed.features)
        return computed

    def turned(self, logits: Float32, wanted: int) -> Float32:
        return np.roll(logits, wanted % self.config.vocab_size, axis=1)


class LouderTarget(WidthDependentTarget):
    """The same greedy tokens, from other logits."""

    def turned(self, logits: Float32, wanted: int) -> Float32:
        return logits * np.float32(2)


class UnprovableTarget(WidthDependentTarget):
    """Deviates from the start, so that its probe fails. `widths` are the rows of each pass so far."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.deviating = True
        self.widths: list[int] = []

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        self.widths.append(len(rows))
        return super().forward(rows, feature_layers)


class GatedTarget(WrappedTarget):
    """Computes freely until `close`; then every pass waits for one `let_pass`, or for `open`. `stopped`: one did."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.stopped = threading.Event()
        self._permits = threading.Semaphore(0)
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def let_pass(self) -> None:
        self._permits.release()

    def open(self) -> None:
        self._closed = False
        self._permits.release()

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        if self._closed:
            self.stopped.set()
            self._permits.acquire()
        return super().forward(rows, feature_layers)


class BreakingTarget(WrappedTarget):
    """Computes until `broken` is set; from then on every pass raises."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.broken = False

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        if self.broken:
            raise RuntimeError("the device fell off the bus")
        return super().forward(rows, feature_layers)


class ScriptedTarget(WrappedTarget):
    """Computes its model, and returns `script` after a prompt of `prompt` tokens whatever the result; after a longer
    prompt, the script's last token.
    """

    script: Sequence[int] = ()
    prompt = 0

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = super().forward(rows, feature_layers)
        if not self.script:  # while it is probed
            return computed
        logits = np.array(computed.logits)
        for row, position in zip(logits, rows.positions[rows.wanted], strict=True):
            row[self.script[min(max(position + 1 - self.prompt, 0), len(self.script) - 1)]] = 1e3
        return PassOutput(logits, computed.features)


class Loader:
    """A `LoadTarget` that wraps what it loads and keeps hold of it."""

    def __init__(self, wrapper: type[WrappedTarget]) -> None:
        self._wrapper = wrapper
        self.target: WrappedTarget | None = None

    def __call__(self, directory: Path, **options: Any) -> Target:
        self.target = self._wrapper(load_target(directory, **options))
        return self.target
