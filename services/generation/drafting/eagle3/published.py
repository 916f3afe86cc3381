"""The two layouts that EAGLE-3 heads are published in, read into a `HeadConfig` with every choice made.

SafeAILab/EAGLE and SpecForge write a flat Llama config and a `midlayer`; speculators (RedHatAI) nests the layer's
config and numbers its layers. Where a config leaves a choice open, the code that trained the head decides.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from transformers import LlamaConfig, Qwen3Config

from services.generation.drafting.eagle3.config import EMBEDDING, HeadConfig, HeadConfigInvalid
from services.generation.drafting.eagle3.layout import layer_numbers, typed
from services.generation.target.config.config import TargetConfig
from services.generation.target.families.gpt_oss import GPT_OSS

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
    return _config(document, document, LlamaConfig, names, layers, norm_before_residual=False)


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
        target_hidden_size=_or(document, "target_hidden_size", sizes["hidden_size"], int),
        intermediate_size=sizes["intermediate_size"],
        heads=sizes["num_attention_heads"],
        kv_heads=sizes["num_key_value_heads"],
        head_dim=int(getattr(parsed, "head_dim", None) or sizes["hidden_size"] // sizes["num_attention_heads"]),
        norm_epsilon=float(parsed.rms_norm_eps),
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=_or(document, "draft_vocab_size", sizes["vocab_size"], int),
        feature_layers=feature_layers,
        rope=dict(parsed.rope_parameters or {}),
        trained_length=sizes["max_position_embeddings"],
        attention_bias="midlayer.self_attn.q_proj.bias" in names,
        output_bias="midlayer.self_attn.o_proj.bias" in names,
        mlp_bias="midlayer.mlp.down_proj.bias" in names,
        head_norms=kind is Qwen3Config,
        own_embeddings=EMBEDDING in names,
        norm_before_residual=_or(document, "norm_before_residual", norm_before_residual, bool),
        norm_before_fc=_or(document, "norm_before_fc", "input_norm.weight" in names, bool),
        fc_norm=_or(document, "fc_norm", False, bool),
        norm_output=_or(document, "norm_output", False, bool),
        hidden_act=_or(layer, "hidden_act", "silu", str),
    )
    config.check()
    return config


def _whole(parsed: LlamaConfig | Qwen3Config, name: str) -> int:
    value = getattr(parsed, name)
    if type(value) is not int or value < 1:
        raise HeadConfigInvalid(f"config.json: {name} is {value!r}; expected a whole number of at least 1")
    return value


def _or(document: dict[str, Any], member: str, default: Any, kind: type) -> Any:
    return default if document.get(member) is None else typed(document, member, kind)
