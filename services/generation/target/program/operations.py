"""Operations of passes: the layers of targets and of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from services.generation.target.program.layer import ExpertLayer, Layer, Mlp, ParallelMlpNorms, State
from services.generation.target.program.matrices import AdapterUpdates, Matrix, embedding_record, linear_record

NOWHERE = np.empty((0, 0), np.float32)
"""Stands for what `bind_output` is told for each pass."""


def folding(
    state: State, *, qkv: Float32, folded: Float32, values: NDArray[Any], states: Float32, mixed: Float32,
    own: Mapping[str, object], epsilon: float,
) -> dict[str, Mapping[str, object]]:  # fmt: skip
    """Arguments of the operations of a layer that folds lines `qkv` into states: `values` are of the cache."""
    rule = state.rule
    heads = 0 if rule.delta else rule.values  # columns of queries and keys, or of keys and queries
    queries, keys = (heads, heads + rule.keys) if rule.delta else (heads + rule.keys, heads)
    normed = rule.value_heads if rule.delta else rule.key_heads
    read = {"qkv": qkv, "qkv_stride": qkv.strides[0]}
    given = {"mixed": mixed, "mixed_stride": mixed.strides[0], "delta": int(rule.delta)}
    sizes = {
        "key_heads": rule.key_heads, "value_heads": rule.value_heads, "key_dim": rule.key_dim, "delta": int(rule.delta),
        "value_dim": rule.value_dim, "folded": folded, "folded_stride": folded.strides[0],
        "values_at": 2 * rule.keys if rule.delta else 0,
    }  # fmt: skip
    return {
        "fold_inputs": {
            **sizes, **read, "padded": values.shape[-1], "values": values, "weight": state.convolution,
            "taps": rule.taps, "shifts": state.shifts, "rates": state.rates, "factor": inverse_root(rule.key_dim),
            "bias": state.bias, "first": 0 if rule.delta else rule.values, "heads_at": heads,
        },
        "fold": {
            **sizes, **given, **own, "tiled": int(rule.tiled), "states": states, "state_size": states.strides[0],
            "kept": len(states), "queries_at": queries, "keys_at": keys,
            "skips": 0 if state.skips is None else state.skips,
        },
        "normed_gate": {
            **read, **given, "first": rule.convolved if rule.delta else 0, "heads": normed, "epsilon": epsilon,
            "dim": rule.values // normed, "weight": state.norm,
        },
    }  # fmt: skip


class Operations:
    """Writes records: the hidden states of a pass, its residual stream, are in `buffers.x`."""

    def __init__(
        self, sizes: LayerSizes, buffers: Buffers, cache: Cache, *, adapted: bool = False, arithmetic: str = "float32"
    ) -> None:  # fmt: skip
        """`adapted`: with the updates of adapters. `arithmetic`: of linear layers, float32 or int8."""
        self.records: list[Int64] = []
        self.kept: list[Int64] = []  # what records point to
        self._sizes, self._buffers, self._cache, self._adapted = sizes, buffers, cache, adapted
        self._arithmetic = arithmetic
        self._kernels = compilation.kernels("rows") | compilation.kernels(f"cache_{cache.form.name}")

    def embed(self, matrix: Matrix, x: Float32, size: int, factor: float) -> None:
        """x = the embeddings of the pass's tokens."""
        self.records.append(embedding_record(matrix, x, size, self._buffers.own, factor))

    def norm(self, x: Float32, out: Float32, weight: Float32, *, wanted: bool = False) -> None:
        """out = the norm of x, of the first values that there are weights for; `wanted`: of wanted rows only."""
        self._add(
            "norm", {"x": x, "x_stride": x.strides[0], "out": out, "out_stride": out.strides[0], "weight": weight,
            "size": len(weight), "epsilon": self._sizes.norm_epsilon, "index": int(wanted),
            "count": count_of("wanted" if wanted else "rows")},
        )  # fmt: skip

    def read(self, norm: Float32 | None) -> Float32:
        """What a part of a layer reads: the stream, normalised where there is a norm."""
        buffers = self._buffers
        if norm is None:
            return buffers.x
        self.norm(buffers.x, buffers.normed, norm)
        return buffers.normed

    def store(self, layer: Layer, number: int, x: Float32) -> None:
        """Queries, and keys and values into the cache; of a convolution what it is made of."""
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
        own = {"kv_heads": 0} if layer.spec.source is not None else {}
        self._add(
            "rotate", {**self._attended(layer, number), **own, **norms, "qkv": buffers.qkv,
            "qkv_stride": buffers.qkv.strides[0], "cosines": cosines, "sines": sines, "turned": cosines.shape[1],
            "epsilon": self._sizes.norm_epsilon, "scales": cache.scales[number],
            "interleaved": int(layer.spec.interleaved), "gated": int(layer.spec.gated)},
        )  # fmt: skip

    def fold(self, state: State, number: int) -> None:
        """Fold the lines of all steps into states, and find what those give for the rows."""
        records = self._folding(state, number)
        for operation in ("fold_inputs", "fold"):
            self._add(operation, records[operation])

    def _folding(self, state: State, number: int) -> Mapping[str, Mapping[str, object]]:
        buffers, cache = self._buffers, self._cache
        assert buffers.folded is not None
        return folding(
            state, qkv=buffers.qkv, folded=buffers.folded, values=cache.values[number], states=cache.states[number],
            mixed=buffers.mixed(state.rule.values), own=buffers.own, epsilon=self._sizes.norm_epsilon,
        )  # fmt: skip

    def _each_head(self, layer: Layer) -> Sequence[Float32]:
        """The norms of each head; those of all queries, and of all keys, are done here."""
        if not layer.spec.whole_norms:
            return layer.head_norms
        first = 0
        for norm in layer.head_norms:
            lines = self._buffers.qkv[:, first : first + len(norm)]
            self.norm(lines, lines, norm)
            first += len(norm)
        return ()

    def attend(self, layer: Layer, number: int) -> None:
        """x += attention of the queries, or the convolution, or what states gave."""
        buffers, spec = self._buffers, layer.spec
        mixed = buffers.mixed(spec.output[0].inputs)
        gates = {
            "mixed": mixed, "mixed_stride": mixed.strides[0], "qkv": buffers.qkv, "qkv_stride": buffers.qkv.strides[0],
        }  # fmt: skip
        if layer.state is not None:
            self._add("normed_gate", self._folding(layer.state, number)["normed_gate"])
            self._residual(layer.output, layer.updates[1], mixed, layer.after_attention, layer.spec.residual)
            return
        if layer.convolution is not None:
            self._add(
                "convolve", {"qkv": buffers.qkv, "qkv_stride": buffers.qkv.strides[0], "size": spec.output[0].inputs,
                "padded": layer.convolution.shape[1], "values": self._cache.values[number],
                "weight": layer.convolution, "taps": spec.taps, "mixed": mixed, "mixed_stride": mixed.strides[0]},
            )  # fmt: skip
            self._residual(layer.output, layer.updates[1], mixed, layer.after_attention, layer.spec.residual)
            return
        attend = {
            **self._attended(layer, number), **buffers.own, "window": layer.spec.window, "chunk": layer.spec.chunk,
            "cap": layer.spec.cap, "mixed": mixed, "mixed_stride": mixed.strides[0],
            "partial": buffers.partial, "blocks": buffers.blocks, "sinks": 0 if layer.sinks is None else layer.sinks,
        }  # fmt: skip
        self._add("attend", attend)
        self._add("attend", attend, kernel="combine")
        if spec.gated:
            self._add("head_gate", {**gates, "heads": spec.heads, "dim": spec.head_dim})
        self._residual(layer.output, layer.updates[1], mixed, layer.after_attention, layer.spec.residual)

    def mlp(self, layer: Layer) -> None:
        """x += MLP of its norm, and what experts make of it."""
        buffers, x = self._buffers, self.read(layer.mlp_norm)
        if layer.mlp and layer.experts and layer.experts.beside:
            self._beside(layer, layer.mlp, layer.experts, layer.experts.beside, x)
            return
        if layer.mlp:
            self._inner(layer, layer.mlp, x)
            if layer.experts and layer.experts.shared_gate:
                self._gated(layer.mlp.down, layer.experts.shared_gate, x)
            else:
                self._residual(layer.mlp.down, layer.updates[3], buffers.inner, layer.after_mlp, layer.spec.residual)
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
        strides = {"x_stride": update.strides[0], "gates_stride": gates.strides[0]}
        self._add("gate_rows", {"x": update, "gates": gates, **strides, "size": self._sizes.hidden_size})
        self._add_update(None)

    def _beside(self, layer: Layer, mlp: Mlp, experts: ExpertLayer, norms: ParallelMlpNorms, x: Float32) -> None:
        """x of the stream += MLP and experts, each normalised, and their sum again."""
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
        """x of the stream += what the layer makes of its inputs [rows, size]; `gated` are lines to work in. Then the
        layer's scalar.
        """
        buffers, inputs = self._buffers, layer.inputs
        if inputs:
            self.linear(inputs.gate, buffers.x, gated)
            strides = {"x_stride": gated.strides[0], "y_stride": x.strides[0], "out_stride": gated.strides[0]}
            self._add("gate", {"x": gated, "y": x, "out": gated, **strides, "size": x.shape[1]})
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
        """out = what the experts of each row make of x; `routed`: the router's logits are there."""
        buffers, spec, hidden = self._buffers.experts, layer.spec, self._sizes.hidden_size
        assert buffers is not None
        if not routed:
            self.linear(layer.router, x, buffers.logits)
        chosen = {"chosen": spec.chosen, "places": buffers.places}
        self._add(
            "route", {**chosen, "logits": buffers.logits, "logits_stride": buffers.logits.strides[0],
            "experts": len(spec.down), "normalised": int(spec.normalised), "sigmoid": int(spec.sigmoid),
            "scored": int(spec.scored), "bias": layer.bias, "factors": layer.scales, "picks": buffers.picks,
            "shares": buffers.shares, "starts": buffers.starts, "next": buffers.next},
        )  # fmt: skip
        before, after = (buffers.shares, buffers.ones) if spec.sigmoid else (buffers.ones, buffers.shares)
        self._add(
            "gather", {**chosen, "factors": before, "x": x, "x_stride": x.strides[0],
            "out": buffers.x, "out_stride": buffers.x.strides[0], "size": hidden},
        )  # fmt: skip
        self._each(layer.gate_up, buffers, buffers.x, buffers.gate_up, unit=2, barrier=False)
        self._activate(of, layer.gate_up[0], buffers.gate_up, buffers.inner, times=spec.chosen)
        self._each(layer.down, buffers, buffers.inner, buffers.y, unit=1, barrier=True)
        self._add(
            "mix", {**chosen, "y": buffers.y, "y_stride": buffers.y.strides[0], "out": out,
            "out_stride": out.strides[0], "shares": after, "size": spec.down[0][0].outputs},
        )  # fmt: skip

    def _each(
        self, matrices: Sequence[Matrix], buffers: ExpertBuffers, x: Float32, y: Float32, *, unit: int, barrier: bool
    ) -> None:
        """y = x W^T of each expert's lines."""
        own, arithmetic = self._buffers.own, self._arithmetic
        records = np.stack([linear_record(matrix, x, y, "rows", unit, own, False, arithmetic) for matrix in matrices])
        self.kept.append(records)
        strides = {"x_stride": x.strides[0], "y_stride": y.strides[0]}
        fields = {"records": records, "experts": len(records), "starts": buffers.starts, **strides}
        self._add("experts", fields, barrier=barrier)

    def _activate(
        self, spec: LayerSpec, matrix: Matrix, gate_up: Float32, out: Float32, *, times: int = 1, barrier: bool = True
    ) -> None:
        """out = activation(gate) * up, or both clamped, in `times` lines of each row."""
        bounds = {"slope": spec.clamp.slope, "limit": spec.clamp.limit} if spec.clamp else {}
        self._add(
            "activate", {"gate_up": gate_up, "gate_up_stride": gate_up.strides[0], "out": out,
            "out_stride": out.strides[0], "panels": matrix.panels, "unit": 2, "times": times, **bounds},
            kernel=f"activate_{'clamped' if spec.clamp else spec.activation}", barrier=barrier,
        )  # fmt: skip

    def linear(
        self, matrix: Matrix, x: Float32, y: Float32, *, count: str = "rows", unit: int = 1, barrier: bool = True
    ) -> None:
        self.records.append(linear_record(matrix, x, y, count, unit, self._buffers.own, barrier, self._arithmetic))

    def cap(self, matrix: Matrix, y: Float32, cap: float) -> None:
        """y = cap * tanh(y / cap), of wanted rows of a matrix's output."""
        stride = y.strides[0] if len(y) else 0
        self._add(
            "cap", {"y": y, "y_stride": stride, "panels": matrix.panels, "unit": 1, "cap": cap,
            "count": count_of("wanted")},
        )  # fmt: skip

    def scale(self, x: Float32, factor: float, size: int) -> None:
        """x *= factor, of all rows."""
        self._add("scale", {"x": x, "x_stride": x.strides[0], "size": size, "factor": factor})

    def copy(self, x: Float32, out: Float32, size: int, *, barrier: bool = True) -> None:
        """out = x, of all rows."""
        strides = {"x_stride": x.strides[0], "out_stride": out.strides[0]}
        self._add("copy", {"x": x, "out": out, **strides, "size": size}, barrier=barrier)

    def _attended(self, layer: Layer, number: int) -> Mapping[str, object]:
        """Arguments that rotating and attending have in common."""
        spec, buffers, cache = layer.spec, self._buffers, self._cache
        return {
            "heads": spec.heads, "kv_heads": spec.kv_heads, "dim": spec.head_dim,
            "padded": padded(spec.head_dim, LANES), "queries": buffers.queries, "keys": cache.keys[number],
            "values": cache.values[number],
        }  # fmt: skip

    def _residual(
        self, matrix: Matrix, updates: AdapterUpdates, x: Float32, after: Float32 | None, factor: float
    ) -> None:
        """x of the stream += factor * matrix(x), with the updates of adapters added first, normalised where there is a
        norm.
        """
        self._update(matrix, updates, x, barrier=after is not None or factor != 1.0)
        self._add_update(after, factor)

    def _update(self, matrix: Matrix, updates: AdapterUpdates, x: Float32, *, barrier: bool = True) -> None:
        """update = matrix(x) with the updates of adapters."""
        update = self._buffers.update
        self.linear(matrix, x, update, barrier=barrier or (self._adapted and updates.any))
        self._low_rank(updates, x, update)

    def _add_update(self, after: Float32 | None, factor: float = 1.0) -> None:
        """x of the stream += factor * update; every member adds what it has computed of it."""
        buffers, size = self._buffers, self._sizes.hidden_size
        if factor != 1.0:
            self.scale(buffers.update, factor, size)
        if after is not None:
            self.norm(buffers.update, buffers.update, after)
        self.add(buffers.x, buffers.update, size)

    def add(self, x: Float32, y: Float32, size: int) -> None:
        """x += y; every member adds what it computed of y, where a linear layer came before."""
        own = {"panels": padded(size, PANEL) // PANEL, "unit": 1, "size": size}
        self._add("add", {"x": x, "x_stride": x.strides[0], "y": y, "y_stride": y.strides[0], **own})

    def _low_rank(self, updates: AdapterUpdates, x: Float32, y: Float32) -> None:
        if self._adapted and updates.any:
            self._add(
                "low_rank", {**self._buffers.own, "x": x, "x_stride": x.strides[0], "y": y, "y_stride": y.strides[0],
                "parts": updates.parts, "adapter_parts": updates.adapter_parts},
            )  # fmt: skip

    def _add(self, operation: str, values: Mapping[str, object], *, kernel: str = "", barrier: bool = True) -> None:
        address = self._kernels[kernel or operation]
        self.records.append(record_of(operation, address, values, barrier=barrier))
