"""The configuration of a head, whatever layout it was stored in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from services.generation.target.config.config import TargetConfig
from services.generation.target.config.config_document import ACTIVATIONS
from services.generation.target.config.layer_specs import LayerSpec, decoder_layer


class HeadError(Exception):
    """A head that cannot be loaded; the message says what was found, what was expected and what to do."""


class HeadNotFound(HeadError):
    """The folder, its config.json or its weights are missing."""


class HeadConfigInvalid(HeadError):
    """config.json is not JSON or of no known layout, or a member is missing, unknown, mistyped or out of range."""


class HeadWeightsInvalid(HeadError):
    """The weight file is truncated, or a tensor is missing, unknown, of another shape or dtype, or out of range."""


class HeadForAnotherBase(HeadError):
    """The head's sizes do not fit the base that it is loaded for."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shapes and choices of one head (EAGLE-3, Li et al. 2025). Lengths in tokens, sizes in elements.

    Input of an entry: the target's residual streams after `feature_layers` decoder layers, side by side, and the
    token that follows. `fc` takes the streams to `hidden_size`; the first decoder layer reads that feature beside the
    token's embedding, layers after it are ordinary ones.
    """

    layers: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    vocab_size: int  # the target's
    draft_vocab_size: int
    feature_layers: tuple[int, ...]  # in the order that `fc` reads them; 0 are the embeddings
    rope: dict[str, Any]  # transformers' rope_parameters: rope_type, rope_theta, …
    trained_length: int  # positions the head was trained on; beyond it guesses get worse, nothing breaks
    attention_bias: bool  # on q, k and v
    output_bias: bool  # on o
    mlp_bias: bool
    head_norms: bool  # every query and key head normalised, as in Qwen3
    own_embeddings: bool  # embed_tokens comes with the head; otherwise the target's are read
    norm_before_residual: bool  # the first residual starts from the normed feature, not from the feature itself
    norm_before_fc: bool  # one norm over all streams side by side (`input_norm`)
    fc_norm: bool  # one norm for each stream
    norm_output: bool  # the next draft step gets the normed output in place of the feature
    hidden_act: str = "silu"  # as transformers calls it

    def check(self) -> None:
        """Raises HeadConfigInvalid, naming the field, for sizes that no head can have."""
        for name in ("layers", "hidden_size", "target_hidden_size", "intermediate_size", "heads", "kv_heads",
                     "head_dim", "vocab_size", "draft_vocab_size", "trained_length"):  # fmt: skip
            if getattr(self, name) < 1:
                raise HeadConfigInvalid(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.hidden_act not in ACTIVATIONS:
            raise HeadConfigInvalid(f"hidden_act is {self.hidden_act!r}; supported: {', '.join(ACTIVATIONS)}")
        if self.heads % self.kv_heads:
            raise HeadConfigInvalid(f"{self.heads} attention heads are not a multiple of {self.kv_heads} key heads")
        if self.head_dim % 2:
            raise HeadConfigInvalid(f"head_dim is {self.head_dim}; RoPE needs an even one")
        if self.draft_vocab_size > self.vocab_size:
            raise HeadConfigInvalid(f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}")
        if not self.feature_layers:
            raise HeadConfigInvalid("feature layers: expected at least one")

    def check_base(self, base: TargetConfig) -> None:
        """Raises HeadForAnotherBase if the head cannot have been made for a base of these sizes."""
        if self.vocab_size != base.vocab_size:
            raise HeadForAnotherBase(f"the head's vocabulary is {self.vocab_size} tokens, the base's {base.vocab_size}")
        if self.target_hidden_size != base.hidden_size:
            raise HeadForAnotherBase(
                f"the head reads features of {self.target_hidden_size}, the base's hidden size is {base.hidden_size}"
            )
        if not self.own_embeddings and self.hidden_size != base.hidden_size:
            raise HeadForAnotherBase(
                f"the head is {self.hidden_size} wide and brings no embeddings; the base's are {base.hidden_size} wide"
            )
        beyond = [layer for layer in self.feature_layers if not 0 <= layer <= base.layers]
        if beyond:
            raise HeadForAnotherBase(f"feature layers {beyond} do not exist; the base has {base.layers} decoder layers")


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every float tensor of a head, under the names of the kolm layout; weights are [out, in]."""
    hidden = config.hidden_size
    features = len(config.feature_layers) * config.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, features),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    if config.own_embeddings:
        shapes[EMBEDDING] = (config.vocab_size, hidden)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (features,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(len(config.feature_layers))}
    for layer in range(config.layers):
        shapes |= _layer_shapes(config, layer)
    return shapes


def layer_spec(config: HeadConfig, layer: int) -> LayerSpec:
    """A decoder layer as the target's kernels know them; the first one reads embedding and feature side by side.

    The kolm layout names the first layer as SafeAILab does, further ones by number.
    """
    prefix, reads = ("midlayer.", 2) if layer == 0 else (f"layers.{layer}.", 1)
    spec = decoder_layer(config, prefix, inputs=reads * config.hidden_size)
    return replace(spec, activation=ACTIVATIONS[config.hidden_act])


FEATURE_NORM = "midlayer.hidden_norm.weight"
EMBEDDING = "embed_tokens.weight"


def _layer_shapes(config: HeadConfig, layer: int) -> dict[str, tuple[int, ...]]:
    spec = layer_spec(config, layer)
    norms = [f"{spec.prefix}{norm}.weight" for norm in (spec.attention_norm, spec.mlp_norm)]
    norms += [FEATURE_NORM] if layer == 0 else []
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (config.hidden_size,))
    for norm in spec.head_norms:
        shapes[f"{spec.prefix}{norm}.weight"] = (config.head_dim,)
    for module in spec.modules:
        shapes[f"{spec.prefix}{module.name}.weight"] = (module.outputs, module.inputs)
        if module.bias:
            shapes[f"{spec.prefix}{module.name}.bias"] = (module.outputs,)
    return shapes
