"""Operations of passes: the layers of targets and of heads, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.layer_specs import LayerSizes, LayerSpec
from services.generation.target.config.rope import inverse_root
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.layout import LANES
from services.generation.target.kernels.records import count_of, record_of
from services.generation.target.kernels.storages import PANEL, padded
from services.generation.target.program.buffers import Buffers, Cache, ExpertBuffers
from services.generation.target.program.layer import ExpertLayer, Layer, Mlp, ParallelNorms, State
from services.generation.target.program.matrices import AdapterUpdates, Matrix, embedding_record, linear_record

NOWHERE = np.empty((0, 0), np.float32)
"""A placeholder for an array that `records.bind` sets for each pass."""


def folding(
    state: State, *, qkv: Float32, folded: Float32, values: NDArray[Any], states: Float32, mixed: Float32,
    scratch: Mapping[str, object], epsilon: float,
) -> dict[str, Mapping[str, object]]:  # fmt: skip
    """Arguments of the operations of a layer that folds lines `qkv` into states. `values`: of the layer's cache."""
    rule = state.rule
    delta, heads_at = int(rule.delta), 0 if rule.delta else rule.values  # columns of queries and keys, or keys, queries
    queries_at, keys_at = (heads_at, heads_at + rule.keys) if rule.delta else (heads_at + rule.keys, heads_at)
    normed = rule.value_heads if rule.delta else rule.key_heads
    sizes = {
        "key_heads": rule.key_heads, "value_heads": rule.value_heads, "key_dim": rule.key_dim, "delta": delta,
        "value_dim": rule.value_dim, "folded": folded, "values_at": 2 * rule.keys if rule.delta else 0,
    }  # fmt: skip
    return {
        "fold_inputs": {
            **sizes, "qkv": qkv, "padded": values.shape[-1], "values": values, "weight": state.convolution,
            "taps": rule.taps, "shifts": state.shifts, "rates": state.rates, "factor": inverse_root(rule.key_dim),
            "bias": state.bias, "first": 0 if rule.delta else rule.values, "heads_at": heads_at,
        },
        "fold": {
            **sizes, **scratch, "mixed": mixed, "tiled": int(rule.tiled), "states": states,
            "state_size": states.strides[0], "kept": len(states), "queries_at": queries_at, "keys_at": keys_at,
            "skips": 0 if state.skips is None else state.skips,
        },
        "normed_gate": {
            "qkv": qkv, "mixed": mixed, "first": rule.convolved if rule.delta else 0, "heads": normed, "delta": delta,
            "epsilon": epsilon, "dim": rule.values // normed, "weight": state.norm,
        },
    }  # fmt: skip


class Around(Protocol):
    """Operations around a part of a layer."""

    def before(self, operations: Operations, x: Float32) -> None:
        """Change the part's normed input `x`."""

    def after(self, operations: Operations, update: Float32) -> None:
        """Change the part's output before it is added to the stream."""


class Operations:
    """Writes the records of a pass, whose residual stream is `buffers.x`."""

    def __init__(
        self, sizes: LayerSizes, buffers: Buffers, cache: Cache, *, adapted: bool = False, arithmetic: str = "float32"
    ) -> None:
        """`adapted`: with the updates of adapters. `arithmetic`: of linear layers, float32 or int8."""
        self.records: list[Int64] = []
        self.keeps_alive: list[Int64] = []  # arrays to which records point and that have no other owner
        self._sizes, self._buffers, self._cache, self._adapted = sizes, buffers, cache, adapted
        self._arithmetic = arithmetic
        self._kernels = compilation.kernels("rows") | compilation.kernels(f"cache_{cache.form.name}")

    def embed(self, matrix: Matrix, x: Float32, size: int, factor: float) -> None:
        """x = factor * the embeddings of the pass's tokens."""
        self.records.append(embedding_record(matrix, x, size, self._buffers.scratch_fields, factor))

    def norm(self, x: Float32, out: Float32, weight: Float32, *, wanted: bool = False) -> None:
        """out = the norm of the first len(weight) values of x, of all rows or of wanted rows."""
        self._add(
            "norm", {"x": x, "out": out, "weight": weight, "size": len(weight), "epsilon": self._sizes.norm_epsilon,
            "index": int(wanted), "count": count_of("wanted" if wanted else "rows")},
        )  # fmt: skip

    def norm_input(self, norm: Float32 | None) -> Float32:
        """Emit the norm of the stream, if there is one; return the input of a part of a layer."""
        buffers = self._buffers
        if norm is None:
            return buffers.x
        self.norm(buffers.x, buffers.normed, norm)
        return buffers.normed

    def project(self, layer: Layer, number: int, x: Float32) -> None:
        """Compute queries, and store keys and values in the cache; or the inputs of a convolution or a state."""
        buffers, cache = self._buffers, self._cache
        for last, matrix in zip([False] * (len(layer.qkv) - 1) + [True], layer.qkv, strict=True):
            self.linear(matrix, x, buffers.qkv, barrier=last)
        self._low_rank(layer.updates[0], x, buffers.qkv)
        if layer.state is not None:
            self.fold(layer.state, number)
        if layer.convolution is not None or layer.state is not None:
            return
        norms = dict(zip(("query_norm", "key_norm"), self._each_head(layer), strict=False))
        cosines, sines = cache.rotations[number]
        if layer.value_norm is not None:
            norms["value_norm"] = layer.value_norm
        no_keys = {"kv_heads": 0} if layer.spec.source is not None else {}
        self._add(
            "rotate", {**self._attended(layer, number), **no_keys, **norms, "qkv": buffers.qkv, "cosines": cosines,
            "sines": sines, "turned": cosines.shape[1], "epsilon": self._sizes.norm_epsilon,
            "scales": cache.scales[number], "interleaved": int(layer.spec.interleaved),
            "gated": int(layer.spec.gated)},
        )  # fmt: skip

    def fold(self, state: State, number: int) -> None:
        """Fold the lines of all steps into states, and compute the states' outputs for the rows."""
        records = self._folding(state, number)
        for operation in ("fold_inputs", "fold"):
            self._add(operation, records[operation])

    def _folding(self, state: State, number: int) -> Mapping[str, Mapping[str, object]]:
        buffers, cache = self._buffers, self._cache
        assert buffers.folded is not None
        return folding(
            state, qkv=buffers.qkv, folded=buffers.folded, values=cache.values[number], states=cache.states[number],
            mixed=buffers.mixed(state.rule.values), scratch=buffers.scratch_fields, epsilon=self._sizes.norm_epsilon,
        )  # fmt: skip

    def _each_head(self, layer: Layer) -> Sequence[Float32]:
        """The norms of each head. Norms over all queries, and over all keys, are emitted here."""
        if not layer.spec.whole_norms:
            return layer.head_norms
        first = 0
        for norm in layer.head_norms:
            lines = self._buffers.qkv[:, first : first + len(norm)]
            self.norm(lines, lines, norm)
            first += len(norm)
        return ()

    def attend(self, layer: Layer, number: int, around: Around | None = None) -> None:
        """x += attention of the queries, or the convolution, or the states' outputs."""
        buffers, spec = self._buffers, layer.spec
        size = spec.output[0].inputs
        mixed = buffers.mixed(size)
        if layer.state is not None:
            self._add("normed_gate", self._folding(layer.state, number)["normed_gate"])
        elif layer.convolution is not None:
            self._add(
                "convolve", {"qkv": buffers.qkv, "size": size, "padded": layer.convolution.shape[1], "taps": spec.taps,
                "values": self._cache.values[number], "weight": layer.convolution, "mixed": mixed},
            )  # fmt: skip
        else:
            attend = {
                **self._attended(layer, number), **buffers.scratch_fields, "window": spec.window, "chunk": spec.chunk,
                "cap": spec.cap, "mixed": mixed, "partial": buffers.partial, "blocks": buffers.blocks,
                "sinks": 0 if layer.sinks is None else layer.sinks,
            }  # fmt: skip
            self._add("attend", attend)
            self._add("attend", attend, kernel="combine")
            if spec.gated:
                gate = {"mixed": mixed, "qkv": buffers.qkv, "heads": spec.heads, "dim": spec.head_dim}
                self._add("head_gate", gate)
        self._residual(layer.output, layer.updates[1], mixed, layer.after_attention, spec.residual, around)

    def mlp(self, layer: Layer, around: Around | None = None) -> None:
        """x += the MLP of its norm, and the experts'. `around` is for a layer without experts."""
        buffers, x = self._buffers, self.norm_input(layer.mlp_norm)
        if around:
            around.before(self, x)
        if layer.mlp and layer.experts and layer.experts.parallel:
            self._parallel(layer, layer.mlp, layer.experts, layer.experts.parallel, x)
            return
        if layer.mlp:
            self._inner(layer, layer.mlp, x)
            if layer.experts and layer.experts.shared_gate:
                self._gated(layer.mlp.down, layer.experts.shared_gate, x)
            else:
                self._residual(
                    layer.mlp.down, layer.updates[3], buffers.inner, layer.after_mlp, layer.spec.residual, around
                )
        if layer.experts:
            self._experts(layer.experts, layer.spec, x, buffers.update)
            self._add_update(layer.after_mlp, layer.spec.residual)

    def _gated(self, down: Matrix, gate: Matrix, x: Float32) -> None:
        """x of the stream += the shared expert's output, times the sigmoid of its gate."""
        buffers = self._buffers
        assert buffers.experts is not None
        update, gates = buffers.update, buffers.experts.gates
        self.linear(gate, x, gates, barrier=False)
        self.linear(down, buffers.inner, update)
        self._add("gate_rows", {"x": update, "gates": gates, "size": self._sizes.hidden_size})
        self._add_update(None)

    def _parallel(self, layer: Layer, mlp: Mlp, experts: ExpertLayer, norms: ParallelNorms, x: Float32) -> None:
        """x of the stream += the norm of the sum of MLP and experts, each normalised."""
        buffers = self._buffers
        assert buffers.experts is not None
        update, mixed = buffers.update, buffers.experts.mixed
        self._inner(layer, mlp, x)
        self._update(mlp.down, layer.updates[3], buffers.inner)
        self.norm(update, update, norms.after_mlp)
        self.norm(buffers.x, buffers.normed, norms.router)
        self.linear(experts.router, buffers.normed, buffers.experts.logits)
        self.norm(buffers.x, buffers.normed, norms.norm)
        self._experts(experts, layer.spec, buffers.normed, mixed, routed=True)
        self.norm(mixed, mixed, norms.after)
        self.add(update, mixed, self._sizes.hidden_size)
        self._add_update(layer.after_mlp)

    def inputs(self, layer: Layer, x: Float32, gated: Float32) -> None:
        """x of the stream += the projection of the layer's inputs `x` [rows, size], gated in the lines `gated`; then
        multiply it by the layer's scalar.
        """
        buffers, inputs = self._buffers, layer.inputs
        if inputs:
            self.linear(inputs.gate, buffers.x, gated)
            self._add("gate", {"x": gated, "y": x, "out": gated, "size": x.shape[1]})
            self.linear(inputs.projection, gated, buffers.update)
            self._add_update(inputs.norm)
        if layer.scalar != 1.0:
            self.scale(buffers.x, layer.scalar, self._sizes.hidden_size)

    def _inner(self, layer: Layer, mlp: Mlp, x: Float32) -> None:
        """inner = activation(gate) * up, of x."""
        buffers, matrix = self._buffers, mlp.gate_up
        adapted = self._adapted and layer.updates[2].any
        self.linear(matrix, x, buffers.gate_up, unit=2, barrier=adapted)
        self._low_rank(layer.updates[2], x, buffers.gate_up)
        self._activate(layer.spec, matrix, buffers.gate_up, buffers.inner)

    def _experts(self, layer: ExpertLayer, of: LayerSpec, x: Float32, out: Float32, *, routed: bool = False) -> None:
        """out = the outputs of each row's experts for x. `routed`: the router's logits are computed already."""
        buffers, spec = self._buffers.experts, layer.spec.config
        assert buffers is not None
        if not routed:
            self.linear(layer.router, x, buffers.logits)
        chosen = {"chosen": spec.chosen, "places": buffers.places}
        self._add(
            "route", {**chosen, "logits": buffers.logits, "experts": spec.count,
            "normalised": int(spec.normalised), "sigmoid": int(spec.sigmoid), "scored": int(spec.scored),
            "bias": layer.bias, "factors": layer.scales, "picks": buffers.picks, "shares": buffers.shares,
            "starts": buffers.starts, "next": buffers.next},
        )  # fmt: skip
        before, after = (buffers.shares, buffers.ones) if spec.sigmoid else (buffers.ones, buffers.shares)
        self._add("gather", {**chosen, "factors": before, "x": x, "out": buffers.x, "size": self._sizes.hidden_size})
        self._each(layer.gate_up, buffers, buffers.x, buffers.gate_up, unit=2, barrier=False)
        self._activate(of, layer.gate_up[0], buffers.gate_up, buffers.inner, times=spec.chosen)
        self._each(layer.down, buffers, buffers.inner, buffers.y, unit=1, barrier=True)
        self._add("mix", {**chosen, "y": buffers.y, "out": out, "shares": after, "size": self._sizes.hidden_size})

    def _each(
        self, matrices: Sequence[Matrix], buffers: ExpertBuffers, x: Float32, y: Float32, *, unit: int, barrier: bool
    ) -> None:
        """y = x W^T of each expert's lines."""
        records = np.stack([self._linear(matrix, x, y, unit=unit, barrier=False) for matrix in matrices])
        self.keeps_alive.append(records)
        strides = {"x_stride": x.strides[0], "y_stride": y.strides[0]}
        fields = {"records": records, "experts": len(records), "starts": buffers.starts, **strides}
        self._add("experts", fields, barrier=barrier)

    def _activate(self, spec: LayerSpec, matrix: Matrix, gate_up: Float32, out: Float32, *, times: int = 1) -> None:
        """out = activation(gate) * up, or both clamped, in `times` lines of each row."""
        bounds = {"slope": spec.clamp.slope, "limit": spec.clamp.limit} if spec.clamp else {}
        fields = {"gate_up": gate_up, "out": out, "panels": matrix.panels, "unit": 2, "times": times, **bounds}
        self._add("activate", fields, kernel=f"activate_{'clamped' if spec.clamp else spec.activation}")

    def linear(
        self, matrix: Matrix, x: Float32, y: Float32, *, count: str = "rows", unit: int = 1, barrier: bool = True
    ) -> None:
        """y = x W^T + b; see `linear_record`."""
        self.records.append(self._linear(matrix, x, y, count=count, unit=unit, barrier=barrier))

    def _linear(
        self, matrix: Matrix, x: Float32, y: Float32, *, count: str = "rows", unit: int, barrier: bool
    ) -> Int64:
        own = self._buffers.scratch_fields, self._arithmetic
        return linear_record(matrix, *own, x=x, y=y, count=count, unit=unit, barrier=barrier)

    def cap(self, matrix: Matrix, y: Float32, cap: float) -> None:
        """y = cap * tanh(y / cap), of wanted rows of a matrix's output."""
        self._add("cap", {"y": y, "panels": matrix.panels, "unit": 1, "cap": cap, "count": count_of("wanted")})

    def scale(self, x: Float32, factor: float, size: int) -> None:
        """x *= factor, of all rows."""
        self._add("scale", {"x": x, "size": size, "factor": factor})

    def copy(self, x: Float32, out: Float32, size: int, *, barrier: bool = True) -> None:
        """out = x, of all rows."""
        self._add("copy", {"x": x, "out": out, "size": size}, barrier=barrier)

    def convolve_block(
        self, x: Float32, weight: Float32, deltas: Float32, *, first: int, group: int, block: int
    ) -> None:
        """x = its convolution along the rows of each block. weight [taps, size]; a row's deltas [taps, groups] from
        column `first` on.
        """
        taps, size = weight.shape
        fields = {"x": x, "weight": weight, "deltas": deltas, "first": first, "size": size, "taps": taps}
        self._add("convolve_block", {**fields, "group": group, "block": block})

    def _attended(self, layer: Layer, number: int) -> Mapping[str, object]:
        """Arguments of both rotation and attention."""
        spec, buffers, cache = layer.spec, self._buffers, self._cache
        return {
            "heads": spec.heads, "kv_heads": spec.kv_heads, "dim": spec.head_dim,
            "padded": padded(spec.head_dim, LANES), "queries": buffers.queries, "keys": cache.keys[number],
            "values": cache.values[number],
        }  # fmt: skip

    def _residual(
        self, matrix: Matrix, updates: AdapterUpdates, x: Float32, after: Float32 | None, factor: float,
        around: Around | None = None,
    ) -> None:  # fmt: skip
        """x of the stream += factor * matrix(x), with the updates of adapters, and its norm if there is one."""
        self._update(matrix, updates, x, barrier=after is not None or factor != 1.0 or around is not None)
        if around:
            around.after(self, self._buffers.update)
        self._add_update(after, factor)

    def _update(self, matrix: Matrix, updates: AdapterUpdates, x: Float32, *, barrier: bool = True) -> None:
        """update = matrix(x) with the updates of adapters."""
        update = self._buffers.update
        self.linear(matrix, x, update, barrier=barrier or (self._adapted and updates.any))
        self._low_rank(updates, x, update)

    def _add_update(self, after: Float32 | None, factor: float = 1.0) -> None:
        """x of the stream += factor * update; every member adds the part that it has computed."""
        buffers, size = self._buffers, self._sizes.hidden_size
        if factor != 1.0:
            self.scale(buffers.update, factor, size)
        if after is not None:
            self.norm(buffers.update, buffers.update, after)
        self.add(buffers.x, buffers.update, size)

    def add(self, x: Float32, y: Float32, size: int) -> None:
        """x += y; after a linear layer, every member adds the part of y that it has computed."""
        self._add("add", {"x": x, "y": y, "panels": padded(size, PANEL) // PANEL, "unit": 1, "size": size})

    def _low_rank(self, updates: AdapterUpdates, x: Float32, y: Float32) -> None:
        if self._adapted and updates.any:
            parts = {"parts": updates.parts, "adapter_parts": updates.adapter_parts}
            self._add("low_rank", {**self._buffers.scratch_fields, "x": x, "y": y, **parts})

    def _add(self, operation: str, values: Mapping[str, object], *, kernel: str = "", barrier: bool = True) -> None:
        address = self._kernels[kernel or operation]
        self.records.append(record_of(operation, address, values, barrier=barrier))
