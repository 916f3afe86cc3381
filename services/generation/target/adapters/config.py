"""adapter_config.json of peft's LoRA: which modules carry an update, of which rank, scaled by how much."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.generation.target.errors import AdapterInvalid, AdapterUnsupported, ModelNotFound
from services.generation.target.files.json_object import read_json_object

MODULES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
FUSED_MODULES = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
SUPPORTED = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, of fused models qkv_proj, gate_up_proj"
_TARGETS = {module.rpartition(".")[2] for module in MODULES + FUSED_MODULES}
MAX_RANK = 1024
_MOST_ALPHA = 3.4e38  # float32 reaches a little further

_READ = {
    "peft_type", "task_type", "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern",
    "alpha_pattern", "layers_to_transform", "layers_pattern", "init_lora_weights", "bias",
    "base_model_name_or_path", "revision",
}  # fmt: skip
_WITHOUT_EFFECT = {  # when tokens are generated from stored weights
    "auto_mapping", "peft_version", "inference_mode", "lora_dropout", "megatron_core", "loftq_config", "eva_config",
    "corda_config", "lora_ga_config", "runtime_config", "ensure_weight_tying", "qalora_group_size",
}  # fmt: skip
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # others change the base's own weights
_PATTERN = re.compile(r"\^?(?:\w|\\?\.)+\$?")


@dataclass(frozen=True, slots=True)
class ModuleUpdate:
    """The shape of one module's update: `module` is its name in the base, for example model.layers.0.mlp.up_proj."""

    layer: int
    module: str
    rank: int
    scale: float  # what the low-rank product is multiplied with


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`base_name` and `base_revision` name the adapter's base, if the adapter states one."""

    updates: tuple[ModuleUpdate, ...]
    base_name: str | None
    base_revision: str | None


def read_adapter_config(directory: Path, layers: int, modules: Sequence[str] = MODULES) -> AdapterConfig:
    """Read and check adapter_config.json against a base of `layers` decoder layers of these linear modules.

    Raises:
        ModelNotFound: there is no such directory, or no adapter_config.json in it.
        AdapterUnsupported: the adapter does something that the canonical pass does not compute; names the field.
        AdapterInvalid: a field is missing, of the wrong type or out of range; names the field.
    """
    path = directory / "adapter_config.json"
    document = read_json_object(path, "an adapter in peft's layout", ModelNotFound, AdapterInvalid)
    _refuse_other_kinds(document)
    return AdapterConfig(
        updates=_updates(document, layers, modules),
        base_name=_text(document, "base_model_name_or_path"),
        base_revision=_text(document, "revision"),
    )


def _refuse_other_kinds(document: dict[str, Any]) -> None:
    """Refuses all but plain LoRA on linear layers by name, including options that a later peft may add."""
    _expect(document, "peft_type", ("LORA",))
    _expect(document, "task_type", ("CAUSAL_LM", None))
    _expect(document, "bias", ("none", None))
    _expect(document, "init_lora_weights", _PLAIN_STARTS)
    for field, value in document.items():
        if value and field not in _READ and field not in _WITHOUT_EFFECT:
            raise AdapterUnsupported(
                f"{field}: {_shown(value)} is not supported; supported: plain LoRA on {SUPPORTED}, without bias, DoRA, "
                "embeddings or modules_to_save"
            )


def _expect(document: dict[str, Any], field: str, allowed: tuple[object, ...]) -> None:
    value = document.get(field)
    if not any(value is each or (isinstance(each, str) and value == each) for each in allowed):
        names = ", ".join(json.dumps(each) for each in allowed)
        raise AdapterUnsupported(f"{field}: {_shown(value)} is not supported; supported: {names}")


def _updates(document: dict[str, Any], layers: int, modules: Sequence[str]) -> tuple[ModuleUpdate, ...]:
    targets = _names(document, "target_modules")
    excluded = _names(document, "exclude_modules") if document.get("exclude_modules") else ()
    chosen_layers = _layers(document, layers)
    _refuse_other_modules(targets)
    names = [(layer, f"model.layers.{layer}.{module}") for layer in chosen_layers for module in modules]
    wanted = [(layer, name) for layer, name in names if _named(name, targets) and not _named(name, excluded)]
    if not wanted:
        raise AdapterInvalid(f"target_modules: {_shown(list(targets))} names no module of a base of {layers} layers")
    return tuple(_update(document, layer, name) for layer, name in wanted)


def _refuse_other_modules(targets: tuple[str, ...]) -> None:
    for target in targets:
        if target.rpartition(".")[2] not in _TARGETS:
            raise AdapterUnsupported(f"target_modules: {_shown(target)} is not supported; supported: {SUPPORTED}")


def _update(document: dict[str, Any], layer: int, name: str) -> ModuleUpdate:
    rank = _patterned(document, "rank_pattern", name, "r", 8)
    alpha = _patterned(document, "alpha_pattern", name, "lora_alpha", 8)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise AdapterInvalid(f"r: {_shown(rank)} for {name}; expected a whole number from 1 to {MAX_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= _MOST_ALPHA:
        raise AdapterInvalid(f"lora_alpha: {_shown(alpha)} for {name}; expected a finite number, as of float32")
    divisor = math.sqrt(rank) if document.get("use_rslora") else rank
    return ModuleUpdate(layer, name, rank, alpha / divisor)


def _patterned(document: dict[str, Any], patterns: str, name: str, otherwise: str, default: int) -> Any:
    """The value of the first pattern that names the module, or else that of the field `otherwise`.

    peft reads the keys as regular expressions; here they are names, so that a file cannot keep the start busy.
    """
    table = document.get(patterns) or {}
    if not isinstance(table, Mapping):
        raise AdapterInvalid(f"{patterns}: expected an object from module names to numbers")
    for pattern, value in table.items():
        if _PATTERN.fullmatch(pattern) is None:
            raise AdapterUnsupported(
                f"{patterns}: {_shown(pattern)} is not supported; supported: module names or their last parts"
            )
        plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if name == plain or (not pattern.startswith("^") and name.endswith(f".{plain}")):
            return value
    return document.get(otherwise, default)


def _layers(document: dict[str, Any], layers: int) -> list[int]:
    pattern, chosen = document.get("layers_pattern"), document.get("layers_to_transform")
    if pattern and pattern not in ("layers", ["layers"]):
        raise AdapterUnsupported(f"layers_pattern: {_shown(pattern)} is not supported; supported: layers")
    if chosen is None or chosen == []:
        return list(range(layers))
    numbers = chosen if isinstance(chosen, list) else [chosen]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < layers:
            raise AdapterInvalid(
                f"layers_to_transform: {_shown(number)}; expected layers of the base, 0 to {layers - 1}"
            )
    return sorted(set(numbers))


def _names(document: dict[str, Any], field: str) -> tuple[str, ...]:
    value = document.get(field)
    if isinstance(value, str):
        raise AdapterUnsupported(
            f"{field}: {_shown(value)}, a pattern, is not supported; supported: a list of {SUPPORTED}"
        )
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise AdapterInvalid(f"{field}: {_shown(value)}; expected a list of module names, of {SUPPORTED}")
    return tuple(value)


def _named(name: str, suffixes: Iterable[str]) -> bool:
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)


def _text(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise AdapterInvalid(f"{field}: {_shown(value)}; expected a text or null")
    return value or None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
