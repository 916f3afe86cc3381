"""LoRA adapters (Hu et al. 2021) in peft's layout: configuration and weights, checked, as pairs of thin matrices."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import regex  # type: ignore[import-untyped]  # has a timeout

from ledger.encoding.text_forms import cid_of_json
from services.generation.target.arrays import Float32
from services.generation.target.config.config_document import read_json_object
from services.generation.target.config.layer_specs import layer_specs
from services.generation.target.errors import (
    AdapterInvalid,
    AdapterUnsupported,
    ModelNotFound,
    TargetError,
    WeightsInvalid,
)
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.safetensors import FLOATS, Part, floats, in_text_part, read_parts
from services.generation.target.identity import one_version
from services.generation.target.naming.hub_names import same_name
from services.generation.target.sizes import MOST_RANK
from services.generation.target.weights import expected_shapes, heads_in_order, listing

if TYPE_CHECKING:
    from services.generation.target.config.config import TargetConfig  # imports transformers

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_GGUF = re.compile(r"([.-](I?Q[0-9][0-9A-Z_]*|BF16|F16|F32))?\.gguf$", re.IGNORECASE)
_CID = "cidv1:"
_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj", "in_proj",
    "out_proj", "w1", "w2", "w3", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba",
    "input_linear", "output_linear",
)  # fmt: skip
_SUPPORTED = ", ".join(_TARGETS)
_ALL_LINEAR = ("target_modules", "all-linear")  # peft's keyword for all modules
_MOST_ALPHA = 3.4e38  # just below float32's largest
_DEFAULT = 8  # peft's, of r and of lora_alpha
_SECONDS = 10.0  # to match all patterns of an adapter; slower patterns are an attack
_LONGEST_PATTERN = 1 << 14  # characters; trainers write at most some hundreds
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
_ROOT, _LAYERS = "base_model.model.", "model.layers."
_FOREIGN = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "an adapted embedding",
    "modules_to_save": "a fully saved module",
    "embed_tokens": "fully saved embeddings",
    "lm_head": "a fully saved head",
    ".bias": "a bias",
    "token_adapter": "trained tokens",
}


@dataclass(frozen=True, slots=True)
class AdapterIdentity:
    """An adapter's name in requests and receipts, and its identifier."""

    name: str
    cid: str


def adapter_cid(directory: Path) -> str:
    """Digest of the adapter's manifest: configuration and weights, each by name, size and SHA-256."""
    files = [_described(directory / name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    return cid_of_json({"type": "kolm.adapter.v1", "files": files})


def _described(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "digest": f"sha256:{digest}"}


def base_names(directory: Path) -> frozenset[str]:
    """Names by which adapters may refer to the base in `directory`: of the folder, a download cache, and GGUF metadata.

    The Hugging Face cache has models in models--<owner>--<name>/snapshots/<revision>. GGUF files are called
    <name>.<quantisation>.gguf or <name>-<quantisation>.gguf.
    """
    parts = directory.resolve().parts
    cached = {part.rpartition("--")[2] for part in parts if part.startswith("models--")}
    files = {_GGUF.sub("", name) for name in (directory.name, parts[-1])}
    return frozenset({directory.name, parts[-1], *files, *cached, *_names_in_gguf(directory)} - {""})


def is_named(base: str, names: Iterable[str]) -> bool:
    """Whether an adapter's base, given as owner/name or as a path, is one of `names`. Letter case, blanks and
    underscores for hyphens, and GGUF at the end are ignored.
    """
    return any(same_name(base, name) for name in names)


def _names_in_gguf(path: Path) -> Iterator[str]:
    """The model's name in GGUF metadata, and the parts from which llama.cpp's converter builds a file's name."""
    try:
        fields = GgufFile.open(path).metadata if path.is_file() else {}
    except TargetError:
        return
    parts = [str(fields.get(f"general.{part}", "")) for part in ("basename", "size_label", "finetune")]
    yield str(fields.get("general.name", ""))
    yield parts[0]
    yield "-".join(filter(None, parts)) if parts[0] else ""


@dataclass(frozen=True, slots=True)
class ModuleUpdate:
    """The shape of a module's update. `module` is its name in the base, for example model.layers.0.mlp.up_proj."""

    layer: int
    module: str
    rank: int
    scale: float  # of the low-rank product


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """An adapter's updates, and its base if it names one."""

    updates: tuple[ModuleUpdate, ...]
    base_name: str | None
    base_revision: str | None


@dataclass(frozen=True, slots=True)
class Trained:
    """The model on which an adapter was trained, by the names of its tensors."""

    prefix: str  # of names of decoder layers, `model.` or a multimodal wrapper's
    other_parts: bool  # parts of other modalities are adapted too


def read_adapter_config(directory: Path, layers: int, modules: Sequence[str], trained: Trained) -> AdapterConfig:
    """Read and check adapter_config.json for a base of `layers` decoder layers with these linear modules.

    Raises:
        ModelNotFound: there is no such directory, or no adapter_config.json in it.
        AdapterUnsupported: the adapter needs a computation that the canonical pass lacks; names the field.
        AdapterInvalid: a field is missing, of the wrong type or out of range; names the field.
    """
    path = directory / CONFIG_FILE
    document = read_json_object(path, "an adapter in peft's layout", ModelNotFound, AdapterInvalid)
    _refuse_other_kinds(document)
    return AdapterConfig(
        updates=_updates(document, layers, modules, trained),
        base_name=_text(document, "base_model_name_or_path"),
        base_revision=_text(document, "revision"),
    )


def _refuse_other_kinds(document: dict[str, Any]) -> None:
    """Raise unless it is plain LoRA on named linear layers. Unknown options, as of a later peft, are refused."""
    _expect(document, "peft_type", ("LORA",))
    _expect(document, "task_type", ("CAUSAL_LM", None))
    _expect(document, "bias", ("none", None))
    _expect(document, "init_lora_weights", _PLAIN_STARTS)
    for field, value in document.items():
        if value and field not in _READ and field not in _WITHOUT_EFFECT:
            raise AdapterUnsupported(
                f"{field}: {_shown(value)} is not supported; supported: plain LoRA on {_SUPPORTED}, without bias, "
                "DoRA, embeddings or modules_to_save"
            )


def _expect(document: dict[str, Any], field: str, allowed: tuple[object, ...]) -> None:
    value = document.get(field)
    if not any(value is each or (isinstance(each, str) and value == each) for each in allowed):
        names = ", ".join(json.dumps(each) for each in allowed)
        raise AdapterUnsupported(f"{field}: {_shown(value)} is not supported; supported: {names}")


def _updates(
    document: dict[str, Any], layers: int, modules: Sequence[str], trained: Trained
) -> tuple[ModuleUpdate, ...]:
    """The modules that peft would adapt, by their names in the model on which the adapter was trained."""
    targets = _targets(document, "target_modules")
    excluded = _targets(document, "exclude_modules") if document.get("exclude_modules") else ()
    chosen = _layers(document, layers)
    if isinstance(targets, str) and (document.get("layers_to_transform") or document.get("layers_pattern")):
        raise AdapterInvalid("layers_to_transform: target_modules is a pattern; expected names, as in peft")
    if not isinstance(targets, str) and not trained.other_parts:
        _refuse_other_modules(targets)
    updates, patterns = list[ModuleUpdate](), _Patterns()
    for layer in range(layers):
        for module in modules:
            name = f"{trained.prefix}layers.{layer}.{module}"
            if _includes("exclude_modules", excluded, name, patterns, chosen=True):
                continue
            if _includes("target_modules", targets, name, patterns, chosen=layer in chosen):
                updates.append(_update(document, layer, f"model.layers.{layer}.{module}", name, patterns))
    if not updates:
        raise AdapterInvalid(f"target_modules: {_shown(targets)} names no module of a base of {layers} layers")
    return tuple(updates)


def _includes(field: str, targets: str | tuple[str, ...], name: str, patterns: _Patterns, *, chosen: bool) -> bool:
    """Whether targets, a pattern or a list of names or ends of names, include a module. Ends of names count in chosen
    layers only.
    """
    if isinstance(targets, str):
        return (field, targets) == _ALL_LINEAR or patterns.match(field, targets, targets, name)
    return name in targets or (chosen and any(name.endswith(f".{target}") for target in targets))


class _Patterns:
    """Matches regular expressions of one configuration within a time limit."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SECONDS

    def match(self, field: str, written: str, pattern: str, name: str) -> bool:
        """Whether `pattern`, made from the `written` value of a field, matches a whole name."""
        left = self._end - time.monotonic()
        try:
            if len(pattern) > _LONGEST_PATTERN or left <= 0:
                raise TimeoutError
            return regex.fullmatch(pattern, name, timeout=left) is not None
        except TimeoutError as error:
            raise AdapterUnsupported(
                f"{field}: {_shown(written)} takes too long to match; expected module names or a simple pattern of them"
            ) from error
        except (regex.error, RecursionError) as error:
            raise AdapterInvalid(f"{field}: {_shown(written)} is not a regular expression: {error}") from error


def _refuse_other_modules(targets: tuple[str, ...]) -> None:
    for target in targets:
        if target.rpartition(".")[2] not in _TARGETS:
            raise AdapterUnsupported(f"target_modules: {_shown(target)} is not supported; supported: {_SUPPORTED}")


def _update(document: dict[str, Any], layer: int, module: str, name: str, patterns: _Patterns) -> ModuleUpdate:
    """The update of a module, `name` in the model on which the adapter was trained."""
    rank = _patterned(document, "rank_pattern", name, patterns, "r")
    alpha = _patterned(document, "alpha_pattern", name, patterns, "lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_RANK:
        raise AdapterInvalid(f"r: {_shown(rank)} for {name}; expected a whole number from 1 to {MOST_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= _MOST_ALPHA:
        raise AdapterInvalid(f"lora_alpha: {_shown(alpha)} for {name}; expected a finite float32")
    divisor = math.sqrt(rank) if document.get("use_rslora") else rank
    return ModuleUpdate(layer, module, rank, alpha / divisor)


def _patterned(document: dict[str, Any], field: str, name: str, patterns: _Patterns, otherwise: str) -> Any:
    """The value of the first pattern that, as in peft, matches the module's name or its end after a dot, else the value
    of the field `otherwise`.
    """
    table = document.get(field) or {}
    if not isinstance(table, Mapping):
        raise AdapterInvalid(f"{field}: expected an object from module names to numbers")
    for pattern, value in table.items():
        if patterns.match(field, pattern, rf"(.*\.)?({pattern})", name):
            return value
    return document.get(otherwise, _DEFAULT)


def _layers(document: dict[str, Any], layers: int) -> Collection[int]:
    pattern, chosen = document.get("layers_pattern"), document.get("layers_to_transform")
    if pattern and pattern not in ("layers", ["layers"]):
        raise AdapterUnsupported(f"layers_pattern: {_shown(pattern)} is not supported; supported: layers")
    if chosen is None or chosen == []:
        return range(layers)
    numbers = chosen if isinstance(chosen, list) else [chosen]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < layers:
            raise AdapterInvalid(
                f"layers_to_transform: {_shown(number)}; expected layers of the base, 0 to {layers - 1}"
            )
    return set(numbers)


def _targets(document: dict[str, Any], field: str) -> str | tuple[str, ...]:
    """A pattern, or a list of names."""
    value = document.get(field)
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise AdapterInvalid(
            f"{field}: {_shown(value)}; expected a pattern, or a list of module names, of {_SUPPORTED}"
        )
    return tuple(value)


def _text(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise AdapterInvalid(f"{field}: {_shown(value)}; expected a text or null")
    return value or None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _AdapterWeights:
    """The open file of one adapter, tensors by their names in a text model. Tensors for other modalities are left out.

    Raises AdapterInvalid if the file is missing or truncated, or mixes names of several models.
    """

    def __init__(self, directory: Path) -> None:
        self._path = path = directory / WEIGHTS_FILE
        if not path.exists():
            raise AdapterInvalid(f"{directory}: no {WEIGHTS_FILE}; pickle is not read")
        try:
            written_parts = read_parts(path)
        except WeightsInvalid as error:
            raise AdapterInvalid(str(error)) from error
        self._parts: dict[str, Part] = {}
        prefixes, others = set[str](), False
        for written, part in written_parts.items():
            inside = written.removeprefix(_ROOT)
            name = in_text_part(inside)
            if name is None:
                others = True
                continue
            if name.startswith(_LAYERS):
                prefixes.add(inside.removesuffix(name.removeprefix("model.")))
            name = _ROOT + name if written.startswith(_ROOT) else written
            if name in self._parts:
                raise AdapterInvalid(f"{path}: {name} has two names; train or convert the adapter again")
            self._parts[name] = part
        if len(prefixes) > 1:
            raise AdapterInvalid(
                f"{path}: modules are below several prefixes, {', '.join(sorted(prefixes))}; expected one prefix"
            )
        self.trained = Trained(prefixes.pop() if prefixes else "model.", others)

    def check(self, adapter: AdapterConfig, base: TargetConfig) -> None:
        """Check every tensor's name, shape and dtype.

        Raises:
            AdapterUnsupported: the file has something other than low-rank updates of linear layers.
            AdapterInvalid: a tensor is missing, unknown, or of another shape or dtype.
        """
        expected, path = _expected(adapter, base), self._path
        for name in sorted(self._parts.keys() - expected.keys()):
            _refuse(name, path)
        if missing := sorted(expected.keys() - self._parts.keys()):
            raise AdapterInvalid(f"{path}: {listing(missing)} missing; adapter_config.json needs it")
        for name, shape in expected.items():
            part = self._parts[name]
            if part.shape != shape:
                raise AdapterInvalid(
                    f"{path}: {name} has shape {list(part.shape)}; expected {list(shape)} by adapter_config.json and "
                    "this base; is the adapter for another base?"
                )
            if part.dtype not in FLOATS:
                raise AdapterInvalid(f"{path}: {name} has dtype {part.dtype}; expected one of {', '.join(FLOATS)}")

    def read(self, update: ModuleUpdate, part: str) -> Float32:
        """lora_A [rank, in] or lora_B [out, rank] in float32, exact from bfloat16 and float16.

        Raises AdapterInvalid if a value is not finite.
        """
        name = _name(update, part)
        values = floats(name, self._parts[name])
        if not np.isfinite(values).all():
            raise AdapterInvalid(f"{self._path}: {name} has values that are not finite; train or convert it again")
        return values


def _name(update: ModuleUpdate, part: str) -> str:
    return f"{_ROOT}{update.module}.{part}.weight"


def _expected(adapter: AdapterConfig, base: TargetConfig) -> dict[str, tuple[int, int]]:
    shapes = expected_shapes(base)
    expected: dict[str, tuple[int, int]] = {}
    for update in adapter.updates:
        rows, columns = shapes[f"{update.module}.weight"]
        expected[_name(update, "lora_A")] = (update.rank, columns)
        expected[_name(update, "lora_B")] = (rows, update.rank)
    return expected


def _refuse(name: str, path: Path) -> None:
    for mark, kind in _FOREIGN.items():
        if mark in name:
            raise AdapterUnsupported(f"{path}: {name} is {kind}, not supported; supported: LoRA on {_SUPPORTED}")
    raise AdapterInvalid(
        f"{path}: {name} is not part of an adapter with this adapter_config.json for this base; is it for another base?"
    )


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """y += scale * ((x down^T) up^T); down [rank, in], up [out, rank], float32."""

    down: Float32
    up: Float32
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter. Keys of `updates` are a layer and a module of it, for example (0, "self_attn.q_proj")."""

    identity: AdapterIdentity
    updates: Mapping[tuple[int, str], LowRank]


def read_adapter(name: str, directory: Path, base: TargetConfig, base_directory: Path, base_cid: str) -> Adapter:
    """Read an adapter in peft's layout (adapter_config.json, adapter_model.safetensors) for a given base.

    Raises:
        TargetError: ModelNotFound, AdapterUnsupported or AdapterInvalid; the message names adapter, file and field.
    """
    with one_version(directory, AdapterInvalid):
        updates = _read_updates(directory, base, base_directory, base_cid)
        identity = AdapterIdentity(name, adapter_cid(directory))
    return Adapter(identity, updates)


def _read_updates(
    directory: Path, base: TargetConfig, base_directory: Path, base_cid: str
) -> dict[tuple[int, str], LowRank]:
    if not (directory / CONFIG_FILE).is_file():
        raise ModelNotFound(f"{directory}: no {CONFIG_FILE}; expected an adapter in peft's layout")
    weights = _AdapterWeights(directory)
    config = read_adapter_config(directory, base.layers, _modules(base), weights.trained)
    _check_base(config, base_directory, base_cid)
    known = expected_shapes(base)  # not every layer of Gemma 4 has every module
    config = replace(config, updates=tuple(each for each in config.updates if f"{each.module}.weight" in known))
    weights.check(config, base)
    updates = dict[tuple[int, str], LowRank]()
    for update in config.updates:
        module = update.module.removeprefix(f"model.layers.{update.layer}.")
        down, up = weights.read(update, "lora_A"), weights.read(update, "lora_B")
        order = heads_in_order(replace(base.rule, converted=False), module) if base.rule else None
        if order is not None:
            down, up = (down[:, order], up) if module.endswith(".out_proj") else (down, up[order])
        updates[update.layer, module] = LowRank(down, up, update.scale)
    return updates


def _modules(base: TargetConfig) -> tuple[str, ...]:
    """Linear modules of decoder layers that can be adapted: all, but MLPs only in models without experts."""
    names = (module.name for layer in layer_specs(base) for group in layer.linears for module in group)
    return tuple(dict.fromkeys(name for name in names if not (base.experts and name.startswith(f"{base.mlp}."))))


def _check_base(config: AdapterConfig, directory: Path, base_cid: str) -> None:
    """Check that the adapter is for this base: by a base_cid in `revision`, else by the base's name if it has one."""
    revision = config.base_revision
    if revision is not None and revision.startswith(_CID):
        if revision != base_cid:
            raise AdapterInvalid(f"revision: the adapter is for the base {revision}; {base_cid} is served")
        return
    known = base_names(directory)
    if config.base_name is not None and not is_named(config.base_name, known):
        raise AdapterInvalid(
            f"base_model_name_or_path: the adapter is for {config.base_name!r}, but {' or '.join(sorted(known))} is "
            "served; if that is the same model, write its name there, or its base_cid into revision"
        )
