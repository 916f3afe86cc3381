"""`Arithmetic` by the compiled kernels, each called by itself through records of its own.

Places that kernels must not read are NaN here: the rest of a line of the cache, slots that no row sees, results
before they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.adapters import Adapter, AdapterIdentity, LowRank
from services.generation.target.arrays import Float32, Int32, Int64
from services.generation.target.blocks import BLOCK
from services.generation.target.config.layer_specs import ModuleSpec
from services.generation.target.config.rope import power_of_e, query_scales, rotations
from services.generation.target.family import StateRule
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels.attention import layout, rounded
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.linear import linear
from services.generation.target.kernels.records import count_of
from services.generation.target.kernels.storages import GROUP, PANEL, padded
from services.generation.target.program.layer import State
from services.generation.target.program.matrices import AdapterUpdates, matrix_of
from services.generation.target.program.operations import folding
from services.generation.target.sizes import MOST_RANK, STATE_LANES
from services.generation.target.states import MOST_PASSING
from tests.numerics import operations
from tests.numerics.arithmetic import Heads
from tests.numerics.emulator import Call, Run, run_here


class KernelArithmetic:
    """`run` executes kernels; `members` of a team share the work of a call."""

    def __init__(self, run: Run = run_here, members: int = 1) -> None:
        self._run, self._members = run, members

    def silu(self, x: Float32) -> Float32:
        return self.activated(x, np.ones_like(x), "silu")

    def gelu(self, x: Float32) -> Float32:
        return self.activated(x, np.ones_like(x), "gelu")

    def clamped(self, gate: Float32, up: Float32, slope: float, limit: float) -> Float32:
        return self.activated(gate, up, "clamped", slope=slope, limit=limit)

    def activated(self, gate: Float32, up: Float32, activation: str, **bounds: float) -> Float32:
        """act(gate) * up; gate and up [rows, n]."""
        rows, size = gate.shape
        panels = padded(size, PANEL) // PANEL
        both = np.zeros((rows, panels, 2, PANEL), np.float32)
        for half, values in enumerate((gate, up)):
            both[:, :, half] = lines(values, PANEL).reshape(rows, panels, PANEL)
        out = unwritten(rows, panels * PANEL)
        fields = {
            "gate_up": both, "out": out,
            "panels": 2 * panels, "unit": 2, "times": 1, **bounds,
        }  # fmt: skip
        self._call("rows", f"activate_{activation}", "activate", fields, {"rows": rows})
        return out[:, :size]

    def capped(self, x: Float32, cap: float) -> Float32:
        """By way of the first rows of a pass, as logits are."""
        y = lines(x, PANEL)
        fields = {
            "y": y, "panels": y.shape[1] // PANEL, "unit": 1, "cap": cap,
            "count": count_of("wanted"),
        }  # fmt: skip
        self._call("rows", "cap", "cap", fields, {"wanted": len(x)})
        return y[:, : x.shape[1]]

    def embedding(self, weights: StoredTensor, tokens: Int64, factor: float = 1.0) -> Float32:
        matrix, size = matrix_of(weights).weights, weights.shape[1]
        x = unwritten(len(tokens), padded(size, PANEL))
        fields = {
            **self._scratch(linear.scratch_bytes(size)), "weights": matrix.panels,
            "groups": matrix.padded_inputs // GROUP, "x": x, "size": size, "factor": factor,
        }  # fmt: skip
        passed = {"rows": len(tokens), "tokens": np.ascontiguousarray(tokens, np.int64)}
        self._call(f"embed_{matrix.storage.name}", "embed", "embed", fields, passed)
        return x[:, :size]

    def rms_norm(self, v: Float32, weight: Float32, epsilon: float) -> Float32:
        """By way of wanted rows: every second row of a matrix with others between."""
        rows, size = v.shape
        x = unwritten(2 * rows, size)
        x[1::2] = v
        out = unwritten(rows, size)
        fields = {
            "x": x, "out": out, "weight": weight.copy(),
            "size": size, "epsilon": epsilon, "count": count_of("wanted"), "index": 1,
        }  # fmt: skip
        passed = {"wanted": rows, "wanted_rows": np.arange(1, 2 * rows, 2, dtype=np.int32)}
        self._call("rows", "norm", "norm", fields, passed)
        return out

    def linear(
        self, x: Float32, weights: StoredTensor, bias: Float32 | None = None, arithmetic: str = "float32"
    ) -> Float32:
        module = "integer" if arithmetic == "int8" else "linear"
        matrix, rows, outputs = matrix_of(weights, bias=bias), len(x), weights.shape[0]
        padded_x, y = lines(x, GROUP), unwritten(rows, matrix.panels * PANEL)
        fields = {
            **self._scratch(linear.scratch_bytes(padded_x.shape[1])), "weights": matrix.weights.panels,
            "x": padded_x, "y": y, "bias": matrix.bias,
            "groups": matrix.weights.padded_inputs // GROUP, "panels": matrix.panels, "unit": 1,
            "count": count_of("rows"),
        }  # fmt: skip
        self._call(f"{module}_{matrix.weights.storage.name}", "linear", "linear", fields, {"rows": rows})
        return y[:, :outputs]

    def added(self, x: Float32, y: Float32) -> Float32:
        """x + y, the residual."""
        rows, size = x.shape
        stream, update = lines(x, 1), lines(y, PANEL)
        fields = {
            "x": stream, "y": update,
            "panels": update.shape[1] // PANEL, "unit": 1, "size": size,
        }  # fmt: skip
        self._call("rows", "add", "add", fields, {"rows": rows})
        return stream

    def low_rank(self, y: Float32, x: Float32, down: Float32, up: Float32, scale: float) -> Float32:
        """The second of two adapters, for the second of two modules; every second row has none and stays."""
        rows, outputs = y.shape
        update = LowRank(down, up, scale)
        adapters = [Adapter(AdapterIdentity(name, ""), {(0, name): update}) for name in ("first", "second")]
        modules = [ModuleSpec(name, outputs, x.shape[1], False) for name in ("first", "second")]
        updates = AdapterUpdates.of(adapters, 0, modules, halves=False)
        both = np.zeros((2 * rows, 2 * outputs), np.float32)
        both[0::2, outputs:] = both[1::2, outputs:] = y
        inputs = np.repeat(x, 2, axis=0)
        slots = np.tile(np.array([1, -1], np.int32), rows)
        fields = {
            **self._scratch(4 * (MOST_RANK + padded(outputs, PANEL))), "x": inputs,
            "y": both, "parts": updates.parts, "adapter_parts": updates.adapter_parts,
        }  # fmt: skip
        passed = {"rows": 2 * rows, "adapter_slots": slots}
        self._call("rows", "low_rank", "low_rank", fields, passed, updates.keeps_alive)
        assert not both[:, :outputs].any()
        assert both[1::2, outputs:].tobytes() == y.tobytes()
        return both[0::2, outputs:]

    def routed(
        self, logits: Float32, chosen: int, normalised: bool, sigmoid: bool = False, scales: Float32 | None = None,
        bias: Float32 | None = None,
    ) -> tuple[Int64, Float32]:  # fmt: skip
        """Pairs are sorted by expert, then by row."""
        rows, experts = logits.shape
        wide, pairs = lines(logits, PANEL), rows * chosen
        picks, places, starts = (np.full(n, -1, np.int64) for n in (pairs, pairs, experts + 1))
        shares = unwritten(rows, chosen)
        fields = {
            "logits": wide, "experts": experts, "chosen": chosen,
            "normalised": int(normalised), "sigmoid": int(sigmoid), "scored": int(bias is not None),
            "bias": np.zeros(experts, np.float32) if bias is None else bias.copy(),
            "factors": np.ones(experts, np.float32) if scales is None else scales.copy(),
            "picks": picks, "shares": shares, "places": places,
            "starts": starts, "next": np.full(experts, -1, np.int64),
        }  # fmt: skip
        self._call("rows", "route", "route", fields, {"rows": rows})
        assert places[np.argsort(picks, kind="stable")].tolist() == list(range(pairs))
        assert starts.tolist() == np.searchsorted(np.sort(picks), np.arange(experts + 1)).tolist()
        return picks.reshape(rows, chosen), shares

    def mixed(self, outputs: Float32, shares: Float32) -> Float32:
        """Outputs lie in another order than their pairs."""
        rows, chosen, size = outputs.shape
        places = np.random.default_rng(rows).permutation(rows * chosen)
        y, out = unwritten(rows * chosen, size), unwritten(rows, size)
        y[places] = outputs.reshape(rows * chosen, size)
        fields = {
            "y": y, "out": out, "chosen": chosen,
            "places": places, "shares": shares.copy(), "size": size,
        }  # fmt: skip
        self._call("rows", "mix", "mix", fields, {"rows": rows})
        return out

    def rotation(
        self, heads: Heads, positions: Int64, frequencies: Sequence[float], factor: float, cache_dtype: str
    ) -> tuple[Float32, Float32, Float32]:
        rows, count, dim = heads.queries.shape
        kv_heads, wide = heads.keys.shape[1], padded(dim, layout.LANES)
        parts = heads.queries, heads.keys, heads.values
        qkv = lines(np.concatenate([part.reshape(rows, -1) for part in parts], axis=1), PANEL)
        cosines, sines = rotations(frequencies, factor, int(positions.max()) + 1)
        queries = unwritten(rows, count, wide)
        cache = PagedCache(rows, kv_heads, dim, cache_dtype)
        slots = cache.slots(np.arange(rows))
        fields = {
            "qkv": qkv, "heads": count, "kv_heads": kv_heads, "dim": dim, "padded": wide,
            "cosines": cosines, "sines": sines, "turned": cosines.shape[1], "epsilon": heads.epsilon,
            "scales": query_scales(dim**-0.5, heads.temperature, int(positions.max()) + 1),
            "interleaved": int(heads.interleaved), "queries": queries, "keys": cache.keys, "values": cache.values,
        }  # fmt: skip
        if heads.value_norms:
            fields["value_norm"] = np.ones(dim, np.float32)
        if heads.norms:
            fields |= dict(zip(("query_norm", "key_norm"), (w.copy() for w in heads.norms), strict=True))
        passed = {"rows": rows, "slots": slots, "positions": positions.astype(np.int32)}
        self._call(f"cache_{cache_dtype}", "rotate", "rotate", fields, passed)
        if cache_dtype == "int8":
            scales = queries[:, :, padded(dim, GROUP) // 4, None]
            queries = queries.view(np.int8)[:, :, :dim].astype(np.float32) * scales
        return queries[:, :, :dim], *cache.read(slots)

    def short_convolution(self, bcx: Float32, weights: Float32, positions: Int64, cache_dtype: str) -> Float32:
        """A pass for the tokens up to the last position, then one for each position on a branch of its own: a copy of
        that token after all others, which sees the committed tokens before it.
        """
        channels, taps = weights.shape
        whole = int(positions.max())
        cache = PagedCache(whole + len(positions), 1, channels, FORMS[cache_dtype].lines.name)
        wide = padded(channels, layout.LANES)
        padded_weights = np.zeros((taps, wide), np.float32)
        padded_weights[:, :channels] = weights.T
        qkv = lines(np.concatenate([bcx[:whole], bcx[positions]]), PANEL)
        mixed = unwritten(len(qkv), padded(channels, PANEL))
        own = np.concatenate([np.arange(whole), positions]).astype(np.int32)
        slots = cache.slots(np.arange(len(qkv)))
        for first, end in ((0, whole), (whole, len(qkv))):
            branched = first == whole
            rows = slice(first, end)
            fields = {
                "qkv": qkv[rows].copy(), "qkv_stride": qkv.strides[0], "size": channels, "padded": wide,
                "values": cache.values, "weight": padded_weights, "taps": taps, "mixed": mixed[rows].copy(),
                "mixed_stride": mixed.strides[0],
            }  # fmt: skip
            count = end - first
            passed = {
                "rows": count, "slots": slots[rows].copy(), "lengths": own[rows] + 1,
                "sequences": np.zeros(count, np.int32), "contiguous": own[rows] + (0 if branched else 1),
                "branch_starts": np.arange(count + 1, dtype=np.int32) * branched,
                "branches": slots[rows].copy(), "tables": cache.table[None].copy(), "table_stride": len(cache.table),
            }  # fmt: skip
            self._call(f"cache_{cache_dtype}", "convolve", "convolve", fields, passed)
            mixed[rows] = fields["mixed"]
        return mixed[whole:, :channels]

    def states(
        self, lines_: Float32, rule: StateRule, weights: Float32, bias: Float32, vectors: Sequence[Float32],
        positions: Int64, cache_dtype: str,
    ) -> Float32:  # fmt: skip
        """A pass over the tokens up to the last position, each a step from the state of the previous one; then a pass
        that folds all tokens up to each position again, in separate states, with the position's row.
        """
        whole, count = int(positions.max()) + 1, len(positions)
        cache = PagedCache(whole, 1, rule.cached, FORMS[cache_dtype].lines.name)
        slots = cache.slots(np.arange(whole))
        window = np.arange(whole)[:, None] + np.arange(1 - rule.taps, 1)
        taps = np.where(window < 0, -1, slots[window]).astype(np.int32)
        kept = np.zeros((2, rule.state), np.float32)
        kept[1] = np.nan
        fold = partial(self._fold, rule, weights, bias, vectors, cache, kept)
        own = np.arange(whole, dtype=np.int32)
        together = fold(lines_[:whole], slots, taps, own, np.minimum(own, 1), np.ones_like(own))
        steps = np.concatenate([np.arange(position + 1) for position in positions])
        paths = np.repeat(np.arange(count), positions + 1).astype(np.int32)
        ends = steps == positions[paths]
        apart = fold(
            lines_[positions], slots[positions], taps[steps], np.where(ends, paths, -1).astype(np.int32),
            np.where(steps == 0, 0, 2 + paths).astype(np.int32), 2 + paths,
        )  # fmt: skip
        assert apart.tobytes() == together[positions].tobytes()
        return apart

    def _fold(
        self, rule: StateRule, weights: Float32, bias: Float32, vectors: Sequence[Float32], cache: PagedCache,
        kept: Float32, rows: Float32, slots: Int32, taps: Int32, step_rows: Int32, sources: Int32, targets: Int32,
    ) -> Float32:  # fmt: skip
        shifts, rates, norm, *skips = vectors
        count, steps = len(rows), len(taps)
        qkv, mixed = lines(rows, PANEL), unwritten(count, padded(rule.values, PANEL))
        folded = unwritten(steps, padded(rule.folded, PANEL))
        state = State(
            rule, np.ascontiguousarray(weights.T), bias.copy(), shifts, power_of_e(rates), norm,
            skips[0] if skips else None,
        )  # fmt: skip
        passed = {
            "rows": count, "slots": slots.copy(), "steps": steps, "step_taps": np.ascontiguousarray(taps),
            "step_rows": step_rows, "step_sources": sources, "step_targets": targets,
        }  # fmt: skip
        scratch = self._scratch(4 * STATE_LANES * MOST_PASSING * rule.key_dim)
        found = folding(
            state,
            qkv=qkv,
            folded=folded,
            values=cache.values[:, 0],
            states=kept,
            mixed=mixed,
            scratch=scratch,
            epsilon=1e-6,
        )
        for operation, fields in found.items():
            module = f"cache_{cache.dtype}" if operation == "fold_inputs" else "rows"
            self._call(module, operation, operation, dict(fields), passed)
        return mixed[:, : rule.values].copy()

    def attention(
        self, queries: Float32, keys: Float32, values: Float32, positions: Int64, window: int, cache_dtype: str,
        cap: float = 0.0, sinks: Float32 | None = None, chunk: int = 0, runs: Int64 | None = None,
    ) -> Float32:  # fmt: skip
        """`runs` [rows]: positions from there on lie in slots of the row's own, as on a branch of a tree."""
        rows, heads, dim = queries.shape
        length, kv_heads, _ = keys.shape
        positions = positions.astype(np.int32)
        runs = positions + 1 if runs is None else np.minimum(runs, positions + 1)
        branch_starts = np.concatenate([[0], np.cumsum(positions + 1 - runs)]).astype(np.int32)
        cache = PagedCache(length + int(branch_starts[-1]), kv_heads, dim, cache_dtype)
        table = cache.table[: -(-length // BLOCK)]
        shared = cache.slots(np.arange(length))
        branches = cache.slots(np.arange(length, length + int(branch_starts[-1])))
        on_branch = np.concatenate([np.arange(run, p + 1) for run, p in zip(runs, positions, strict=True)])
        cache.write(branches, keys[on_branch], values[on_branch])
        seen = np.arange(length) < runs.max()  # what only branches hold is not in the table
        cache.write(shared[seen], keys[seen], values[seen])
        wide, group_size = padded(dim, layout.LANES), heads // kv_heads
        padded_queries = unwritten(rows, heads, wide)
        padded_queries[:, :, :dim] = queries
        if cache_dtype == "int8":
            whole, scales = operations.rounded(queries, dim)
            padded_queries = rounded.query_lines(whole, scales[..., 0], wide)
        mixed = unwritten(rows, padded(heads * dim, PANEL))
        blocks = -(-(int(positions.max()) + 1) // BLOCK)  # that a row sees at most
        fields = {
            **self._scratch(layout.scratch_bytes(group_size, wide)), "queries": padded_queries, "heads": heads,
            "kv_heads": kv_heads, "dim": dim, "padded": wide, "keys": cache.keys, "values": cache.values,
            "window": window, "chunk": chunk, "cap": cap, "sinks": 0 if sinks is None else sinks.copy(), "mixed": mixed,
            "mixed_stride": mixed.strides[0],
            "partial": np.zeros(rows * kv_heads * blocks * group_size * layout.result_bytes(wide), np.uint8),
            "blocks": blocks,
        }  # fmt: skip
        passed = {
            "rows": rows, "positions": positions, "lengths": positions + 1, "sequences": np.zeros(rows, np.int32),
            "contiguous": runs.astype(np.int32), "branch_starts": branch_starts, "branches": branches,
            "tables": table[None].copy(), "table_stride": len(table),
        }  # fmt: skip
        module = f"cache_{cache_dtype}"
        calls = [Call(module, name, "attend", fields, passed, (), self._members) for name in ("attend", "combine")]
        self._run(calls)
        return mixed[:, : heads * dim].reshape(rows, heads, dim)

    def _call(
        self, module: str, kernel: str, operation: str, fields: dict[str, Any], passed: dict[str, Any],
        pointed: Sequence[NDArray[Any]] = (),
    ) -> None:  # fmt: skip
        self._run([Call(module, kernel, operation, fields, passed, pointed, self._members)])

    def _scratch(self, size: int) -> dict[str, Any]:
        size = padded(size, 4096)
        return {"scratch": np.full(size * self._members, 255, np.uint8), "scratch_size": size}


class PagedCache:
    """Keys and values of `positions` tokens in blocks that lie in any order; what is not written is NaN."""

    def __init__(self, positions: int, kv_heads: int, dim: int, dtype: str) -> None:
        blocks = -(-positions // BLOCK) + 1
        wide = padded(dim, layout.LANES)
        self.dim, self.dtype, self._dtype = dim, dtype, np.dtype(np.float32 if dtype == "float32" else np.uint16)
        if dtype == "int8":
            arrays = FORMS[dtype].arrays(1, blocks, kv_heads, dim, dim)
            self.keys, self.values = (  # scales of such bytes are NaN
                np.full(shape[1:], 255, arrays.kind) for shape in (arrays.keys, arrays.values)
            )
        else:
            self.keys = self._nan(blocks, kv_heads, dim, BLOCK)
            self.values = self._nan(blocks, kv_heads, BLOCK, wide)
        self.table = np.random.default_rng(blocks).permutation(blocks).astype(np.int32)

    def _nan(self, *shape: int) -> NDArray[Any]:
        return np.full(shape, np.nan if self._dtype == np.float32 else 0x7FC0, self._dtype)

    def slots(self, positions: Int64) -> Int32:
        return (self.table[positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32)

    def write(self, slots: Int32, keys: Float32, values: Float32) -> None:
        """keys, values [slots, key heads, dim]; for bfloat16 only what it holds exactly."""
        blocks, offsets = slots // BLOCK, slots % BLOCK
        if self.dtype == "int8":
            for (bytes_, scales, every, each), heads in zip(self._bytes(slots), (keys, values), strict=True):
                whole, scale = operations.rounded(heads, self.dim)
                bytes_[every], scales[each] = whole + 128, scale[..., 0]
            return
        self.keys[blocks, :, :, offsets] = self._stored(keys)
        self.values[blocks, :, offsets, : self.dim] = self._stored(values)

    def read(self, slots: Int32) -> tuple[Float32, Float32]:
        blocks, offsets = slots // BLOCK, slots % BLOCK
        if self.dtype == "int8":
            keys, values = (
                (bytes_[every] - np.float32(128)) * scales[each][..., None]
                for bytes_, scales, every, each in self._bytes(slots)
            )
            return keys, values
        return self._widened(self.keys[blocks, :, :, offsets]), self._widened(
            self.values[blocks, :, offsets, : self.dim]
        )

    def _bytes(self, slots: Int32) -> list[tuple[NDArray[Any], NDArray[Any], Any, Any]]:
        """Arrays of bytes and of scales of the keys, and of the values, and where those [slots, key heads, dim] and
        [slots, key heads] are in them.
        """
        lead = self.keys.shape[:2]
        words, flat = self.keys.reshape(*lead, -1, BLOCK, 4), self.values.reshape(*lead, -1)
        columns = flat[..., : -4 * BLOCK].reshape(*lead, BLOCK // 4, -1, 4)
        scales = words[:, :, -1].view(np.float32)[..., 0], flat[..., -4 * BLOCK :].view(np.float32)
        head, i = np.arange(lead[1])[None, :], np.arange(self.dim)
        block, offset = slots[:, None] // BLOCK, slots[:, None] % BLOCK
        one, j = (block, head, offset), offset[..., None]
        every = block[..., None], head[..., None]
        return [
            (words, scales[0], (*every, i // 4, j, i % 4), one),
            (columns, scales[1], (*every, j // 4, i, j % 4), one),
        ]

    def _stored(self, values: Float32) -> NDArray[Any]:
        if self._dtype == np.float32:
            return values
        bits = values.view(np.uint32)
        assert not (bits & 0xFFFF).any()
        return (bits >> 16).astype(np.uint16)

    def _widened(self, stored: NDArray[Any]) -> Float32:
        if self._dtype == np.float32:
            return np.ascontiguousarray(stored)
        return (stored.astype(np.uint32) << 16).view(np.float32)


def unwritten(*shape: int) -> Float32:
    return np.full(shape, np.nan, np.float32)


def lines(rows: Float32, multiple: int) -> Float32:
    """A copy of rows [n, size], each filled up with zeros."""
    whole = np.zeros((len(rows), padded(rows.shape[1], multiple)), np.float32)
    whole[:, : rows.shape[1]] = rows
    return whole
