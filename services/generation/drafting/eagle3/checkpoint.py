"""An EAGLE-3 head's configuration, in kolm's layout and in the two that heads are published in."""

from __future__ import annotations

import json
import logging
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import LlamaConfig, Qwen3Config

from services.generation.drafting.heads import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    HeadConfigInvalid,
    HeadWeightsInvalid,
    layer_numbers,
    typed,
    typed_or,
)
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.config_document import ACTIVATIONS
from services.generation.target.config.layer_specs import LayerSpec, decoder_layer
from services.generation.target.families import GPT_OSS
from services.generation.target.sizes import expected, fits

if TYPE_CHECKING:
    import torch


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
        sizes = {
            "layers": "num_hidden_layers", "hidden_size": "hidden_size", "target_hidden_size": "hidden_size",
            "intermediate_size": "intermediate_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
            "head_dim": "head_dim", "vocab_size": "vocab_size", "draft_vocab_size": "vocab_size",
            "trained_length": "max_position_embeddings",
        }  # fmt: skip
        for name, size in sizes.items():
            if not fits(size, getattr(self, name)):
                raise HeadConfigInvalid(f"{name} is {getattr(self, name)!r:.80}; expected {expected(size)}")
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


LAYOUT = "kolm.eagle3.v1"

# Member of config.json: (attribute of HeadConfig, type). All are required, and no other is allowed.
_MEMBERS: dict[str, tuple[str, type]] = {
    "num_hidden_layers": ("layers", int),
    "hidden_size": ("hidden_size", int),
    "target_hidden_size": ("target_hidden_size", int),
    "intermediate_size": ("intermediate_size", int),
    "num_attention_heads": ("heads", int),
    "num_key_value_heads": ("kv_heads", int),
    "head_dim": ("head_dim", int),
    "rms_norm_eps": ("norm_epsilon", float),
    "vocab_size": ("vocab_size", int),
    "draft_vocab_size": ("draft_vocab_size", int),
    "feature_layers": ("feature_layers", list),
    "rope_parameters": ("rope", dict),
    "max_position_embeddings": ("trained_length", int),
    "attention_bias": ("attention_bias", bool),
    "output_bias": ("output_bias", bool),
    "mlp_bias": ("mlp_bias", bool),
    "head_norms": ("head_norms", bool),
    "own_embeddings": ("own_embeddings", bool),
    "norm_before_residual": ("norm_before_residual", bool),
    "norm_before_fc": ("norm_before_fc", bool),
    "fc_norm": ("fc_norm", bool),
    "norm_output": ("norm_output", bool),
    "hidden_act": ("hidden_act", str),
}
_FIXED = {"layout": LAYOUT, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}


def config_document(config: HeadConfig) -> dict[str, Any]:
    """config.json of a head in kolm's layout."""
    values = {member: getattr(config, attribute) for member, (attribute, _) in _MEMBERS.items()}
    return {**_FIXED, **values, "feature_layers": list(config.feature_layers)}


def parse_config(document: dict[str, Any]) -> HeadConfig:
    """Raises HeadConfigInvalid, naming what is missing, unknown, mistyped or out of range."""
    expected = _MEMBERS.keys() | _FIXED.keys()
    missing, unknown = sorted(expected - document.keys()), sorted(document.keys() - expected)
    if missing or unknown:
        raise HeadConfigInvalid(f"config.json: missing {missing}, unknown {unknown}; {LAYOUT} has {sorted(expected)}")
    for member, value in _FIXED.items():
        if document[member] != value:
            raise HeadConfigInvalid(f"config.json: {member} is {document[member]!r}; expected {value!r}")
    values = {attribute: typed(document, member, kind) for member, (attribute, kind) in _MEMBERS.items()}
    values["feature_layers"] = layer_numbers(document, "feature_layers")
    config = HeadConfig(**values)
    config.check()
    return config


def write_head(directory: Path, config: HeadConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Write a head in kolm's layout.

    `tensors` are the floats that `head_shapes(config)` lists, and `d2t` [draft_vocab_size] int64: target id = draft id
    + d2t[draft id]. `t2d` [vocab_size] bool, which other engines ask for, is derived.

    Raises:
        HeadWeightsInvalid: a tensor is missing, unknown or of another shape.
    """
    import torch
    from safetensors.torch import save_file

    config.check()
    shapes = {**head_shapes(config), "d2t": (config.draft_vocab_size,)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
    if wrong:
        raise HeadWeightsInvalid(f"tensors {wrong} are missing, unknown or of another shape than the config says")
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[torch.arange(config.draft_vocab_size) + tensors["d2t"]] = True
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in {**tensors, "t2d": known}.items()}, directory / WEIGHTS_FILE
    )
    (directory / CONFIG_FILE).write_text(json.dumps(config_document(config), indent=2) + "\n")


_log = logging.getLogger(__name__)

ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "LlamaEagle3DraftModel")
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_LAYER_CONFIGS: dict[str, type[LlamaConfig] | type[Qwen3Config]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_IDS = "eagle_aux_hidden_state_layer_ids"


def default_layers(base: TargetConfig) -> tuple[int, ...]:
    """Low, middle and high, as EAGLE-3's own training code takes them: hidden_states[2], [n // 2] and [n - 3]."""
    return (2, base.layers // 2, base.layers - 3)


def read_safeailab(document: dict[str, Any], names: Set[str], base: TargetConfig) -> HeadConfig:
    """The layout of SafeAILab/EAGLE and SpecForge; `names` are the tensors' names.

    Explicit layer ids name layers whose *output* is read: id i is the stream after i + 1 layers; those of heads for
    gpt-oss (nvidia) name the stream itself.
    """
    architecture = document.get("architectures") or [None]
    if not isinstance(architecture, list) or architecture[0] not in ARCHITECTURES:
        raise HeadConfigInvalid(f"config.json: architectures is {architecture}; expected one of {ARCHITECTURES}")
    missing = [member for member in _REQUIRED if member not in document]
    if missing:
        raise HeadConfigInvalid(f"config.json: missing {missing}")
    nested = document.get("eagle_config")
    where = nested if isinstance(nested, dict) and nested.get(_IDS) else document
    after = 0 if base.architecture == GPT_OSS.name else 1
    layers = tuple(i + after for i in layer_numbers(where, _IDS)) if where.get(_IDS) else default_layers(base)
    config = _config(document, document, LlamaConfig, names, layers, norm_before_residual=False)
    if config.norm_output:  # nothing in the files tells such heads apart
        _log.warning(
            "head: it has norm_output: SpecForge before 15 September 2026 trained such heads without, and they draft "
            "worse from their second step on; if acceptance is low, train it again"
        )
    return config


def read_speculators(document: dict[str, Any], names: Set[str], base: TargetConfig) -> HeadConfig:
    """The layout of speculators; `names` are the tensors' names, already as the kolm layout calls them.

    Layer ids are taken as they stand: id i is the stream after i layers. The nested config holds differences from
    transformers' defaults only. `norm_before_residual` is on where it is missing.
    """
    nested = document.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise HeadConfigInvalid(f"config.json: transformer_layer_config is {nested!r}; expected an object")
    kind = nested.get("model_type", "llama")
    if kind not in _LAYER_CONFIGS:
        raise HeadConfigInvalid(f"config.json: model_type is {kind!r}; expected one of {sorted(_LAYER_CONFIGS)}")
    layers = layer_numbers(document, _IDS) if document.get(_IDS) else default_layers(base)
    nested = {"num_hidden_layers": 1, **nested}
    return _config(document, nested, _LAYER_CONFIGS[kind], names, layers, norm_before_residual=True)


def _config(
    document: dict[str, Any],
    layer: dict[str, Any],
    kind: type[LlamaConfig] | type[Qwen3Config],
    names: Set[str],
    feature_layers: tuple[int, ...],
    *,
    norm_before_residual: bool,
) -> HeadConfig:
    """Tensors decide whether there are biases and embeddings: some configs are copies of a base's and claim tensors
    that the head lacks. A norm before `fc` has its tensor always, and its member in some configs only.
    """
    try:
        parsed = kind(**{key: value for key, value in layer.items() if key not in ("architectures", "torch_dtype")})
    except Exception as error:  # transformers raises many kinds here, each of them about these members
        raise HeadConfigInvalid(f"config.json: {error}") from error
    sizes = {name: _whole(parsed, name) for name in (
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "max_position_embeddings",
    )}  # fmt: skip
    config = HeadConfig(
        layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        target_hidden_size=typed_or(document, "target_hidden_size", sizes["hidden_size"], int),
        intermediate_size=sizes["intermediate_size"],
        heads=sizes["num_attention_heads"],
        kv_heads=sizes["num_key_value_heads"],
        head_dim=int(getattr(parsed, "head_dim", None) or sizes["hidden_size"] // sizes["num_attention_heads"]),
        norm_epsilon=float(parsed.rms_norm_eps),
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=typed_or(document, "draft_vocab_size", sizes["vocab_size"], int),
        feature_layers=feature_layers,
        rope=dict(parsed.rope_parameters or {}),
        trained_length=sizes["max_position_embeddings"],
        attention_bias="midlayer.self_attn.q_proj.bias" in names,
        output_bias="midlayer.self_attn.o_proj.bias" in names,
        mlp_bias="midlayer.mlp.down_proj.bias" in names,
        head_norms=kind is Qwen3Config,
        own_embeddings=EMBEDDING in names,
        norm_before_residual=typed_or(document, "norm_before_residual", norm_before_residual, bool),
        norm_before_fc=typed_or(document, "norm_before_fc", "input_norm.weight" in names, bool),
        fc_norm=typed_or(document, "fc_norm", False, bool),
        norm_output=typed_or(document, "norm_output", False, bool),
        hidden_act=typed_or(layer, "hidden_act", "silu", str),
    )
    config.check()
    return config


def _whole(parsed: LlamaConfig | Qwen3Config, name: str) -> int:
    value = getattr(parsed, name)
    if type(value) is not int or value < 1:
        raise HeadConfigInvalid(f"config.json: {name} is {value!r}; expected a whole number of at least 1")
    return value
