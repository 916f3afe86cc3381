"""`docs/numerics.md` from a list of tokens to the logits of each: one sequence, every row from its own history.

The page's arithmetic is implemented independently here. Other code is shared with the pass, so that a mistake in it
shows in neither: readers of files and configurations, dequantisation, modules of layers (`layer_specs`), frequencies of
rotations, factors of queries (`query_scales`) and roots of sizes (`inverse_root`). It has tests of its own, against
exact arithmetic, transformers and the `gguf` package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.target.adapters import Adapter
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import (
    EMBEDDING,
    LAYER_EMBEDDING,
    LAYER_NORM,
    LAYER_PROJECTION,
    ExpertsSpec,
    LayerSpec,
    ModuleSpec,
    layer_specs,
)
from services.generation.target.config.rope import decay_rates, inverse_root, query_scales
from services.generation.target.family import CONVOLUTION, NORM, StateRule
from services.generation.target.weights import Weights, output_name, reader
from tests.numerics.operations import (
    ACTIVATIONS,
    ONE,
    ZERO,
    Operand,
    add,
    attention,
    cached,
    capped,
    clamped,
    cosines_and_sines,
    embedding,
    exp,
    fma,
    folded,
    linear,
    linear_int8,
    low_rank,
    quantised,
    rms_norm,
    rotate,
    short_convolution,
    sigmoid,
    silu,
    softplus,
    unit,
)


@np.errstate(all="ignore")
def routed(
    logits: Float32, chosen: int, normalised: bool, sigmoid: bool = False, bias: Float32 | None = None
) -> tuple[list[int], Float32]:
    """The experts that compute a row with these router's logits [experts], by rank, and their shares [chosen].

    With a bias [experts] sigmoids are scores, chosen by their sums with it.
    """
    if bias is not None:
        scores = ONE / (ONE + exp(-logits))
        ranked = np.argsort(-(scores + bias), kind="stable")[:chosen]
        total = np.zeros((), np.float32)
        for score in scores[ranked]:
            total = add(total, score)
        return ranked.tolist(), scores[ranked] / (total + np.float32(1e-6)) if normalised else scores[ranked]
    ranked = np.argsort(-logits, kind="stable")[:chosen]
    if sigmoid:
        return ranked.tolist(), ONE / (ONE + exp(-logits[ranked]))
    weights = exp(logits - logits[ranked[0]])
    total = np.zeros((), np.float32)
    for weight in weights[ranked] if normalised else weights:
        total = add(total, weight)
    return ranked.tolist(), weights[ranked] / total


def mixed(outputs: Float32, shares: Float32) -> Float32:
    """Outputs [chosen, n] of a row's experts, by rank: [n]."""
    total = np.zeros(outputs.shape[1], np.float32)
    for output, share in zip(outputs, shares, strict=True):
        total = fma(share, output, total)
    return total


@np.errstate(all="ignore")
def what_states_give(
    lines: Float32, rule: StateRule, weights: Float32, bias: Operand, vectors: Sequence[Float32], epsilon: np.float32,
    cache_dtype: str,
) -> Float32:  # fmt: skip
    """[tokens, value heads * size] of one sequence; `lines` are q, k, v, z, b and a side by side, of Mamba-2 z, v, k, q
    and a. `weights` [channels, taps] and `bias` are of the convolution, `vectors` as `StateRule.vectors` names them.
    """
    tokens, keys = len(lines), rule.keys
    gates_at = rule.convolved if rule.delta else 0
    gates = lines[:, gates_at : gates_at + rule.values]
    inputs = cached(np.delete(lines, slice(gates_at, gates_at + rule.values), axis=1), cache_dtype)
    qkv, pairs = np.split(inputs, [rule.convolved], axis=1)
    shifts, rates, norm, *skips = vectors
    qkv = silu(short_convolution(qkv, weights, bias))
    times = softplus(pairs[:, -rule.value_heads :] + shifts)
    decays = exp(-(decay_rates(rates, converted=rule.converted) * times))
    if not rule.delta:
        values, keys_, queries = np.split(qkv, [rule.values, rule.values + keys], axis=1)
        queries, keys_ = (each.reshape(tokens, rule.key_heads, -1) for each in (queries, keys_))
        found = folded(queries, keys_, values.reshape(tokens, -1, rule.value_dim), decays, times, skips[0])
        gated = (found.reshape(tokens, -1) * silu(gates)).reshape(tokens, rule.key_heads, -1)
        return rms_norm(gated, norm.reshape(rule.key_heads, -1), epsilon).reshape(tokens, -1)
    queries, keys_, values = np.split(qkv, [keys, 2 * keys], axis=1)
    found = folded(
        unit(queries.reshape(tokens, -1, rule.key_dim), np.float32(inverse_root(rule.key_dim))),
        unit(keys_.reshape(tokens, -1, rule.key_dim), ONE),
        values.reshape(tokens, -1, rule.value_dim),
        decays,
        sigmoid(pairs[:, : rule.value_heads]),
        tiled=rule.tiled,
    )
    return (rms_norm(found, norm, epsilon) * silu(gates.reshape(found.shape))).reshape(tokens, -1)


Stored = dict[int, tuple[Float32, Float32]]
"""Keys and values of layers, as a cache holds them."""


@dataclass(frozen=True, slots=True)
class Computed:
    """streams[i] is the residual stream after i decoder layers: `Target.forward`'s feature layer i."""

    logits: Float32  # [tokens, vocabulary]
    streams: Float32  # [layers + 1, tokens, hidden size]


class ReferenceModel:
    """A model to compute with; `adapter` is for all rows. `cache_dtype` is float32, bfloat16 or int8,
    `arithmetic` float32 or int8.
    """

    def __init__(
        self, config: TargetConfig, weights: Weights, adapter: Adapter | None = None, *, cache_dtype: str = "float32",
        arithmetic: str = "float32",
    ) -> None:  # fmt: skip
        self._arithmetic = arithmetic
        self._config, self._read, self._cache_dtype = config, reader(weights, config), cache_dtype
        self._output = output_name(weights, config)
        self._updates = adapter.updates if adapter else {}
        self._epsilon = np.float32(config.norm_epsilon)

    def forward(self, tokens: Sequence[int]) -> Computed:
        """Compute the rows of one sequence from its first token on."""
        config = self._config
        x = embedding(self._weight(EMBEDDING), np.array(tokens, np.int64), np.float32(config.embedding_scale))
        streams = [x]
        stored: Stored = {}
        inputs = self._layer_inputs(tokens, x) if config.layer_inputs else None
        for number, spec in enumerate(layer_specs(config)):
            x = self.layer(number, spec, x, stored, None if inputs is None else inputs[:, number])
            streams.append(x)
        logits = self._linear(self._norm(NORM, x, np.float32(config.logit_scale)), self._output)
        cap = np.float32(config.logit_cap)
        return Computed(capped(logits, cap) if cap else logits, np.stack(streams))

    def _layer_inputs(self, tokens: Sequence[int], x: Float32) -> Float32:
        """Inputs by layer of tokens whose embeddings are x: [tokens, layers, size]."""
        config, shape = self._config, (len(tokens), self._config.layers, self._config.layer_inputs)
        factor = np.float32(math.sqrt(config.layer_inputs))
        table = embedding(self._weight(LAYER_EMBEDDING), np.array(tokens, np.int64), factor)
        projected = self._linear(x, LAYER_PROJECTION) * np.float32(inverse_root(config.hidden_size))
        normed = self._norm(LAYER_NORM, projected.reshape(shape))
        return (normed + table.reshape(shape)) * np.float32(math.sqrt(0.5))

    def layer(self, number: int, spec: LayerSpec, x: Float32, stored: Stored, inputs: Float32 | None = None) -> Float32:
        """x [tokens, hidden size] after one more decoder layer, which keeps its keys and values in `stored`."""
        normed = self._norm(f"{spec.prefix}{spec.attention_norm}.weight", x) if spec.attention_norm else x
        qkv = self._modules(number, spec, spec.qkv, normed)
        if spec.rule:
            mixed = self._state(spec, spec.rule, qkv)
        else:
            mixed = self._convolution(spec, qkv) if spec.taps else self._attention(number, spec, qkv, stored)
        added = self._modules(number, spec, spec.output, mixed)
        x = x + self._after(spec, spec.after_attention, added)
        normed = self._norm(f"{spec.prefix}{spec.mlp_norm}.weight", x) if spec.mlp_norm else x
        if spec.experts and spec.experts.config.parallel:
            added = self._parallel(number, spec, spec.experts, x, normed)
            x = x + self._after(spec, spec.after_mlp, added)
        else:
            if spec.down:
                added = self._mlp(number, spec, spec.gate_up, spec.down, normed)
                if spec.experts and spec.experts.shared_gate:
                    added = added * sigmoid(self._module(number, spec, spec.experts.shared_gate, normed))
                x = x + self._after(spec, spec.after_mlp, added)
            if spec.experts:
                x = x + self._after(spec, spec.after_mlp, self._experts(number, spec, spec.experts, normed))
        if spec.inputs and inputs is not None:
            gate = ACTIVATIONS[spec.activation](self._module(number, spec, spec.inputs.gate, x))
            x = x + self._after(
                spec, spec.inputs.norm, self._module(number, spec, spec.inputs.projection, gate * inputs)
            )
        return x * self._weight(f"{spec.prefix}{spec.scalar}.weight") if spec.scalar else x

    def _parallel(self, number: int, spec: LayerSpec, experts: ExpertsSpec, x: Float32, normed: Float32) -> Float32:
        """Outputs of MLP and experts, each normalised: [tokens, hidden size]."""
        names = experts.config.parallel
        assert names
        root = np.float32(inverse_root(self._config.hidden_size))
        routing = rms_norm(x, self._weight(f"{spec.prefix}{names.router_norm}.weight") * root, self._epsilon)
        read = self._norm(f"{spec.prefix}{names.norm}.weight", x)
        scales = self._weight(f"{spec.prefix}{names.scales}.weight")
        mixture = self._experts(number, spec, experts, read, routing, scales)
        mlp = self._after(spec, names.after_mlp, self._mlp(number, spec, spec.gate_up, spec.down, normed))
        return mlp + self._after(spec, names.after, mixture)

    def _mlp(
        self, number: int, spec: LayerSpec, gate_up: Sequence[ModuleSpec], down: Sequence[ModuleSpec], x: Float32
    ) -> Float32:
        gate, up = np.split(self._modules(number, spec, gate_up, x), 2, axis=1)
        if spec.clamp:
            inner = clamped(gate, up, np.float32(spec.clamp.slope), np.float32(spec.clamp.limit))
        else:
            inner = ACTIVATIONS[spec.activation](gate) * up
        return self._modules(number, spec, down, inner)

    def _experts(
        self, number: int, spec: LayerSpec, experts: ExpertsSpec, x: Float32, routing: Float32 | None = None,
        scales: Float32 | None = None,
    ) -> Float32:  # fmt: skip
        """Outputs [tokens, hidden size] of x. `routing` is the router's input where not x; `scales` are the factors of
        experts' shares.
        """
        logits = self._modules(number, spec, (experts.router,), x if routing is None else routing)
        config = experts.config
        bias = self._choice_bias(spec, experts) if config.scored else None
        chosen = [routed(row, config.chosen, config.normalised, config.sigmoid, bias) for row in logits]
        picks, shares = np.array([ranked for ranked, _ in chosen]), np.stack([shares for _, shares in chosen])
        shares = shares * (np.float32(config.scale) if scales is None else scales[picks])
        before, after = (shares, np.ones_like(shares)) if config.sigmoid else (np.ones_like(shares), shares)
        outputs = np.empty((*picks.shape, self._config.hidden_size), np.float32)
        for expert in np.unique(picks):
            at = np.nonzero(picks == expert)
            own = experts.gate_up[expert], experts.down[expert]
            outputs[at] = self._mlp(number, spec, *own, x[at[0]] * before[at][:, None])
        return np.stack([mixed(*row) for row in zip(outputs, after, strict=True)])

    def _choice_bias(self, spec: LayerSpec, experts: ExpertsSpec) -> Float32:
        if experts.config.choice_bias:
            return self._weight(f"{spec.prefix}{experts.config.choice_bias}.weight")
        return np.zeros(len(experts.down), np.float32)

    def _after(self, spec: LayerSpec, norm: str, added: Float32) -> Float32:
        added = added if spec.residual == 1.0 else added * np.float32(spec.residual)
        return self._norm(f"{spec.prefix}{norm}.weight", added) if norm else added

    def _attention(self, number: int, spec: LayerSpec, qkv: Float32, stored: Stored) -> Float32:
        """Attention, [tokens, heads * dim]; `qkv` is [tokens, (heads + 2 key heads) * dim], side by side."""
        tokens = len(qkv)
        heads = qkv.reshape(tokens, -1, spec.head_dim)
        gates = heads[:, 1 : 2 * spec.heads : 2]  # after each query, if there are any
        if spec.gated:
            heads = np.concatenate([heads[:, 0 : 2 * spec.heads : 2], heads[:, 2 * spec.heads :]], axis=1)
        scales = query_scales(spec.scale, spec.temperature, tokens)[:, None, None]
        queries = self._turned(number, spec, heads[:, : spec.heads], 0) * scales
        if spec.source is None:
            keys, values = np.split(heads[:, spec.heads :], 2, axis=1)
            keys = self._turned(number, spec, keys, 1)
            values = self._unit_norm(values) if spec.value_norms else values
            rounds_later = self._cache_dtype == "int8"
            keys, values = (x if rounds_later else cached(x, self._cache_dtype) for x in (keys, values))
            stored[number] = keys, values
        keys, values = stored[number if spec.source is None else spec.source]
        sinks = self._weight(f"{spec.prefix}{spec.sinks}.weight") if spec.sinks else None
        more = spec.window, np.float32(spec.cap), sinks, spec.chunk, self._cache_dtype
        rows = [attention(queries[p], keys[: p + 1], values[: p + 1], *more) for p in range(tokens)]
        found = np.stack(rows).reshape(heads[:, : spec.heads].shape)
        return (found * sigmoid(gates) if spec.gated else found).reshape(tokens, -1)

    def _state(self, spec: LayerSpec, rule: StateRule, lines: Float32) -> Float32:
        bias = self._weight(f"{spec.prefix}{rule.convolution}.bias") if rule.biased else ZERO
        weights, *vectors = (self._weight(f"{spec.prefix}{name}.weight") for name in (rule.convolution, *rule.vectors))
        return what_states_give(lines, rule, weights, bias, vectors, self._epsilon, self._cache_dtype)

    def _convolution(self, spec: LayerSpec, bcx: Float32) -> Float32:
        """[tokens, hidden size]; `bcx` are three lines of that size side by side."""
        before, after, x = np.split(bcx, 3, axis=1)
        inputs = cached(before * x, self._cache_dtype)
        return after * short_convolution(inputs, self._weight(f"{spec.prefix}{CONVOLUTION}.weight"))

    def _turned(self, number: int, spec: LayerSpec, heads: Float32, norm: int) -> Float32:
        """Heads of queries (norm 0) or keys (1) at positions from 0 on, normalised if they have a norm, and rotated."""
        if spec.head_norms:
            whole = heads.reshape(len(heads), -1) if spec.whole_norms else heads
            heads = self._norm(f"{spec.prefix}{spec.head_norms[norm]}.weight", whole).reshape(heads.shape)
        if spec.unit_norms:
            heads = self._unit_norm(heads)
        rotation, context = self._config.rotations[number], self._config.context_length
        angles = cosines_and_sines(np.arange(len(heads)), rotation.within(context), rotation.factor)
        cosine, sine = (table[:, None] for table in angles)
        return rotate(heads, cosine, sine, rotation.interleaved)

    def _unit_norm(self, heads: Float32) -> Float32:
        return rms_norm(heads, np.ones(heads.shape[-1], np.float32), self._epsilon)

    def _modules(self, number: int, spec: LayerSpec, modules: Sequence[ModuleSpec], x: Float32) -> Float32:
        """Outputs of the modules side by side."""
        return np.concatenate([self._module(number, spec, module, x) for module in modules], axis=1)

    def _module(self, number: int, spec: LayerSpec, module: ModuleSpec, x: Float32) -> Float32:
        name = f"{spec.prefix}{module.name}"
        bias = self._weight(f"{name}.bias") if module.bias else np.float32(0)
        y = self._linear(x, f"{name}.weight", bias)
        update = self._updates.get((number, module.name))
        if update is None:
            return y
        return low_rank(y, x, update.down, update.up, np.float32(update.scale))

    def _linear(self, x: Float32, name: str, bias: Operand = ZERO) -> Float32:
        tensor = self._read(name)
        matrix = quantised(tensor) if self._arithmetic == "int8" else None
        return linear(x, tensor.values(), bias) if matrix is None else linear_int8(x, matrix, bias)

    def _norm(self, name: str, v: Float32, factor: np.float32 = ONE) -> Float32:
        offset = np.float32(self._config.norm_offset)
        weight = self._weight(name)
        return rms_norm(v, (weight + offset if offset else weight) * factor, self._epsilon)

    def _weight(self, name: str) -> Float32:
        return self._read(name).values()
