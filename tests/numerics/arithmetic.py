"""The sections of `docs/numerics.md` as functions of arrays: what every implementation of them is asked in tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.generation.target.arrays import Float32, Int64, UInt32
from services.generation.target.family import StateRule, Temperature
from services.generation.target.files.stored_tensor import StoredTensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one layer before they are rotated: queries and keys [rows, heads, dim], values [rows, key heads, dim].

    The norms are weights [dim] for queries and keys, or nothing.
    """

    queries: Float32
    keys: Float32
    values: Float32
    norms: tuple[Float32, Float32] | None = None
    epsilon: float = 1e-5
    interleaved: bool = False  # as of `Rotation`
    temperature: Temperature | None = None
    value_norms: bool = False  # values are normalised, without weights


class Arithmetic(Protocol):
    """float32 in and out. Rows do not depend on each other."""

    def silu(self, x: Float32) -> Float32: ...

    def gelu(self, x: Float32) -> Float32: ...

    def clamped(self, gate: Float32, up: Float32, slope: float, limit: float) -> Float32: ...

    def capped(self, x: Float32, cap: float) -> Float32: ...

    def embedding(self, weights: StoredTensor, tokens: Int64, factor: float = 1.0) -> Float32:
        """Rows of weights [vocabulary, n]: [tokens, n]."""
        ...

    def rms_norm(self, v: Float32, weight: Float32, epsilon: float) -> Float32:
        """The norm of v [rows, n]."""
        ...

    def linear(
        self, x: Float32, weights: StoredTensor, bias: Float32 | None = None, arithmetic: str = "float32"
    ) -> Float32:
        """x [rows, K], weights [N, K], bias [N]: [rows, N]; `arithmetic` is float32, or int8 for quantised weights."""
        ...

    def low_rank(self, y: Float32, x: Float32, down: Float32, up: Float32, scale: float) -> Float32:
        """y [rows, N], x [rows, K], down [r, K], up [N, r]: [rows, N]."""
        ...

    def routed(
        self, logits: Float32, chosen: int, normalised: bool, sigmoid: bool = False, scales: Float32 | None = None,
        bias: Float32 | None = None,
    ) -> tuple[Int64, Float32]:  # fmt: skip
        """Each row's experts by the router's logits [rows, experts]: by rank, and their shares, [rows, chosen]."""
        ...

    def mixed(self, outputs: Float32, shares: Float32) -> Float32:
        """The sum of outputs [rows, chosen, n] by shares [rows, chosen]: [rows, n]."""
        ...

    def rotation(
        self, heads: Heads, positions: Int64, frequencies: Sequence[float], factor: float, cache_dtype: str
    ) -> tuple[Float32, Float32, Float32]:
        """Queries that are normed, rotated and scaled; keys and values as they come out of the cache again."""
        ...

    def short_convolution(self, bcx: Float32, weights: Float32, positions: Int64, cache_dtype: str) -> Float32:
        """bcx [tokens, 3 * channels] of one sequence, weights [channels, taps]: [positions, channels], times the
        second part.
        """
        ...

    def states(
        self, lines: Float32, rule: StateRule, weights: Float32, bias: Float32, vectors: Sequence[Float32],
        positions: Int64, cache_dtype: str,
    ) -> Float32:  # fmt: skip
        """Outputs of states [positions, values] for lines [tokens, outputs of linear layers] of one sequence; see
        `reference_model.what_states_give`.
        """
        ...

    def attention(
        self, queries: Float32, keys: Float32, values: Float32, positions: Int64, window: int, cache_dtype: str,
        cap: float = 0.0, sinks: Float32 | None = None, chunk: int = 0,
    ) -> Float32:  # fmt: skip
        """queries [rows, heads, dim], each seeing keys and values [length, key heads, dim] up to its position.

        The cache holds keys and values without rounding them.
        """
        ...


def assert_same_bits(found: Float32, expected: Float32) -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    same = (bits(found) == bits(expected)) | (np.isnan(found) & np.isnan(expected))
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        shown = (
            f"{found[where]!r} ({bits(found)[where]:08x}), expected {expected[where]!r} ({bits(expected)[where]:08x})"
        )
        raise AssertionError(f"{int((~same).sum())} of {same.size} numbers differ, the first at {where}: {shown}")


def bits(values: Float32) -> UInt32:
    return np.ascontiguousarray(values).view(np.uint32)


def any_bits(random: np.random.Generator, *shape: int) -> Float32:
    """Numbers of all magnitudes, subnormals and zeros of both signs among them; none infinite or NaN."""
    drawn = random.integers(0, 2**32, shape, np.uint32)
    drawn = np.where(random.random(shape) < 0.05, drawn & np.uint32(0x80000000), drawn)
    return np.where(drawn & 0x7F800000 == 0x7F800000, drawn & ~np.uint32(0x40000000), drawn).view(np.float32)
