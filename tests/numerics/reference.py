"""`Arithmetic` by the reference."""

from collections.abc import Sequence

import numpy as np

from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.rope import query_scales
from services.generation.target.family import StateRule
from services.generation.target.files.stored_tensor import StoredTensor
from tests.numerics import operations
from tests.numerics import reference_model as model
from tests.numerics.arithmetic import Heads


class ReferenceArithmetic:
    silu = staticmethod(operations.silu)
    gelu = staticmethod(operations.gelu)

    def clamped(self, gate: Float32, up: Float32, slope: float, limit: float) -> Float32:
        return operations.clamped(gate, up, np.float32(slope), np.float32(limit))

    def capped(self, x: Float32, cap: float) -> Float32:
        return operations.capped(x, np.float32(cap))

    def embedding(self, weights: StoredTensor, tokens: Int64, factor: float = 1.0) -> Float32:
        return operations.embedding(weights.values(), tokens, np.float32(factor))

    def rms_norm(self, v: Float32, weight: Float32, epsilon: float) -> Float32:
        return operations.rms_norm(v, weight, np.float32(epsilon))

    def linear(
        self, x: Float32, weights: StoredTensor, bias: Float32 | None = None, arithmetic: str = "float32"
    ) -> Float32:
        bias = operations.ZERO if bias is None else bias
        if arithmetic == "int8":
            matrix = operations.quantised(weights)
            assert matrix is not None
            return operations.linear_int8(x, matrix, bias)
        return operations.linear(x, weights.values(), bias)

    def low_rank(self, y: Float32, x: Float32, down: Float32, up: Float32, scale: float) -> Float32:
        return operations.low_rank(y, x, down, up, np.float32(scale))

    def routed(
        self, logits: Float32, chosen: int, normalised: bool, sigmoid: bool = False, scales: Float32 | None = None,
        bias: Float32 | None = None,
    ) -> tuple[Int64, Float32]:  # fmt: skip
        found = [model.routed(row, chosen, normalised, sigmoid, bias) for row in logits]
        picks, shares = np.array([ranked for ranked, _ in found]), np.stack([shares for _, shares in found])
        return picks, shares if scales is None else shares * scales[picks]

    def mixed(self, outputs: Float32, shares: Float32) -> Float32:
        return np.stack([model.mixed(*row) for row in zip(outputs, shares, strict=True)])

    def rotation(
        self, heads: Heads, positions: Int64, frequencies: Sequence[float], factor: float, cache_dtype: str
    ) -> tuple[Float32, Float32, Float32]:
        queries, keys = heads.queries, heads.keys
        if heads.norms:
            queries, keys = (
                operations.rms_norm(v, weight, np.float32(heads.epsilon))
                for v, weight in zip((queries, keys), heads.norms, strict=True)
            )
        tables = operations.cosines_and_sines(positions, frequencies, factor)
        cosine, sine = (table[:, None] for table in tables)
        scales = query_scales(queries.shape[-1] ** -0.5, heads.temperature, int(positions.max()) + 1)[positions]
        with np.errstate(all="ignore"):
            queries = operations.rotate(queries, cosine, sine, heads.interleaved) * scales[:, None, None]
        keys = operations.rotate(keys, cosine, sine, heads.interleaved)
        values = heads.values
        if heads.value_norms:
            values = operations.rms_norm(values, np.ones(values.shape[-1], np.float32), np.float32(heads.epsilon))
        if cache_dtype == "int8":
            return _as_bytes(queries), _as_bytes(keys), _as_bytes(values)
        return queries, operations.cached(keys, cache_dtype), operations.cached(values, cache_dtype)

    def short_convolution(self, bcx: Float32, weights: Float32, positions: Int64, cache_dtype: str) -> Float32:
        before, after, x = np.split(bcx, 3, axis=1)
        with np.errstate(all="ignore"):
            inputs = operations.cached(before * x, cache_dtype)
            return (after * operations.short_convolution(inputs, weights))[positions]

    def states(
        self, lines: Float32, rule: StateRule, weights: Float32, bias: Float32, vectors: Sequence[Float32],
        positions: Int64, cache_dtype: str,
    ) -> Float32:  # fmt: skip
        return model.what_states_give(lines, rule, weights, bias, vectors, np.float32(1e-6), cache_dtype)[positions]

    def attention(
        self, queries: Float32, keys: Float32, values: Float32, positions: Int64, window: int, cache_dtype: str,
        cap: float = 0.0, sinks: Float32 | None = None, chunk: int = 0,
    ) -> Float32:  # fmt: skip
        rows = [
            operations.attention(
                query, keys[: position + 1], values[: position + 1], window, np.float32(cap), sinks, chunk, cache_dtype
            )
            for query, position in zip(queries, positions, strict=True)
        ]
        return np.stack(rows)


@np.errstate(all="ignore")
def _as_bytes(heads: Float32) -> Float32:
    """Heads as int8 has them: whole numbers times their scale."""
    whole, scale = operations.rounded(heads, heads.shape[-1])
    return np.asarray(whole.astype(np.float32) * scale, np.float32)
