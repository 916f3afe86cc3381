"""Heads: small networks on the target's hidden states. The common parts of all kinds of heads.

A kind is a method that drafts with heads (`MethodSpec.heads`). A head's folder has a `config.json`, which determines
its kind, and a `model.safetensors`, or several files and their index. Pickles are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from transformers import LlamaConfig, PretrainedConfig

from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.config_document import read_json_object
from services.generation.target.config.layer_specs import LayerSizes
from services.generation.target.config.rope import Rotation, rotation_of
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.safetensors import FLOATS, INDEX, Part, floats, read_files, write_parts
from services.generation.target.sizes import LARGEST, expected, fits

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_VERIFIER = ("verifier_norm.weight", "verifier_lm_head.weight")  # speculators' copies of the base, for training only
INDEXES = frozenset({"d2t", "t2d"})
"""Tensors that map a head's own vocabulary to the target's, and back."""
_WHOLE = {"I64": "<i8", "I32": "<i4"}
_SIZES = {
    "layers": "num_hidden_layers", "hidden_size": "hidden_size", "target_hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim", "vocab_size": "vocab_size", "draft_vocab_size": "vocab_size",
    "trained_length": "max_position_embeddings",
}  # fmt: skip
# Member of config.json: (attribute of the configuration, type).
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
    "own_embeddings": ("own_embeddings", bool),
}
_PUBLISHED = ("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "vocab_size", "trained_length")
"""Sizes that published configurations have under the names of `_SIZES`."""
_NOT_SIZES = ("architectures", "torch_dtype", "dtype")


class HeadError(Exception):
    """A head that cannot be loaded; the message names the finding, the expectation and the remedy."""


class HeadNotFound(HeadError):
    """The folder, its config.json or its weights are missing."""


class HeadConfigInvalid(HeadError):
    """config.json is not JSON or of no known layout, or a member is missing, unknown, mistyped or out of range."""


class HeadWeightsInvalid(HeadError):
    """The weight file is truncated, or a tensor is missing, unknown, of another shape or dtype, or out of range."""


class HeadForAnotherBase(HeadError):
    """The head's sizes do not fit the base that it is loaded for."""


class FeatureSizes(Protocol):
    """The target's streams that a head reads."""

    @property
    def feature_layers(self) -> tuple[int, ...]: ...
    @property
    def target_hidden_size(self) -> int: ...


class Sizes(LayerSizes, FeatureSizes, Protocol):
    """Sizes and choices of all kinds of heads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def draft_vocab_size(self) -> int: ...
    @property
    def own_embeddings(self) -> bool: ...
    @property
    def rope(self) -> dict[str, Any]: ...
    @property
    def trained_length(self) -> int: ...


Config = TypeVar("Config", bound=Sizes)


class DraftHead(Protocol):
    """A head in memory, checked against its own configuration and its base; pure data."""

    @property
    def kind(self) -> str:
        """The method that drafts with it."""
        ...

    @property
    def config(self) -> FeatureSizes: ...


@dataclass(frozen=True, slots=True)
class HeadKind:
    """Recognition and reading of heads of one kind."""

    knows: Callable[[Mapping[str, Any]], bool]
    """Whether a config.json belongs to such a head, in any layout."""
    known_by: str
    """A description for the message about a head of no known kind."""
    load: Callable[[Path, TargetConfig], DraftHead]
    """Load a folder's head for a base, its weights in float32. Nothing is half loaded.

    Raises:
        HeadNotFound: the folder, config.json or its weights are missing.
        HeadConfigInvalid: config.json is of no known layout, or a member is missing or wrong; the message names it.
        HeadWeightsInvalid: a file is truncated; a tensor is missing, unknown, or of another shape, dtype or range.
        HeadForAnotherBase: the head's sizes do not fit the base.
    """


def read_document(directory: Path) -> dict[str, Any]:
    """config.json of a head's folder. Raises HeadNotFound or HeadConfigInvalid."""
    return read_json_object(directory / CONFIG_FILE, "a head's folder", HeadNotFound, HeadConfigInvalid)


def read_weights(directory: Path) -> Mapping[str, Part]:
    """The tensors of a head's folder by name. Raises HeadNotFound or HeadWeightsInvalid."""
    if not any((directory / name).is_file() for name in (WEIGHTS_FILE, INDEX)):
        raise HeadNotFound(
            f"{directory}: no {WEIGHTS_FILE} and no {INDEX}; convert other formats first, pickle is not read"
        )
    try:
        return {name: part for name, part in read_files(directory).items() if name not in _VERIFIER}
    except WeightsInvalid as error:
        raise HeadWeightsInvalid(str(error)) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """A head's stored tensors, with the names of kolm's layout."""

    parts: Mapping[str, Part]

    def check_names(self, expected: Iterable[str], *, d2t_required: bool) -> None:
        """Raises HeadWeightsInvalid if a tensor is missing or unknown."""
        wanted = {*expected, *(["d2t"] if d2t_required else [])}
        missing = sorted(wanted - self.parts.keys())
        spare = self.parts.keys() - wanted - INDEXES
        unknown = sorted(name for name in spare if not name.endswith("rotary_emb.inv_freq"))
        if missing or unknown:
            raise HeadWeightsInvalid(f"weights: missing {missing}, unknown {unknown}; does config.json fit them?")

    def tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float32]:
        """The tensors of these shapes, in float32. Raises HeadWeightsInvalid for another shape or dtype, or a NaN."""
        for name, shape in shapes.items():
            self._check(name, shape, FLOATS)
        tensors = {name: floats(name, self.parts[name]) for name in shapes}
        for name, values in tensors.items():
            if not np.isfinite(values).all():
                raise HeadWeightsInvalid(f"weights: {name} holds a value that is infinite or not a number")
        return tensors

    def target_ids(self, draft_vocab_size: int, vocab_size: int) -> Int64:
        """[draft_vocab_size] the target's token of each draft token: target id = draft id + d2t[draft id]. Without a
        d2t both vocabularies are the same.

        Raises:
            HeadWeightsInvalid: d2t maps outside of the vocabulary or twice to a token; t2d marks other tokens.
        """
        own = np.arange(draft_vocab_size, dtype=np.int64)
        if "d2t" not in self.parts:
            return own
        self._check("d2t", own.shape, tuple(_WHOLE))
        ids: Int64 = own + self.parts["d2t"].read().view(_WHOLE[self.parts["d2t"].dtype])
        twice = len(ids) - len(np.unique(ids))
        if ids.min() < 0 or ids.max() >= vocab_size or twice:
            raise HeadWeightsInvalid(
                f"weights: d2t maps to ids from {ids.min()} to {ids.max()}, {twice} of them twice; expected different "
                f"ids from 0 to {vocab_size - 1}"
            )
        if "t2d" in self.parts:
            self._check("t2d", (vocab_size,), ("BOOL",))
            if not np.array_equal(np.flatnonzero(self.parts["t2d"].read()), np.sort(ids)):
                raise HeadWeightsInvalid("weights: t2d and d2t have different tokens")
        return ids

    def _check(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> None:
        part = self.parts[name]
        if part.shape != shape:
            raise HeadWeightsInvalid(
                f"weights: {name} has shape {list(part.shape)}; expected {list(shape)} by config.json"
            )
        if part.dtype not in dtypes:
            raise HeadWeightsInvalid(f"weights: {name} has dtype {part.dtype}; expected one of {', '.join(dtypes)}")


@dataclass(frozen=True, slots=True)
class Described(Generic[Config]):
    """A head's folder, checked by its configuration and its tensors' names; tensors are not read yet."""

    origin: str  # its layout
    config: Config
    stored: Stored
    shapes: Mapping[str, tuple[int, ...]]  # of its float tensors

    def check(self, base: TargetConfig) -> None:
        """Raises HeadForAnotherBase, or HeadWeightsInvalid for a tensor that is missing or unknown."""
        check_base(self.config, base)
        own = self.config.draft_vocab_size < self.config.vocab_size
        self.stored.check_names(self.shapes, d2t_required=own)

    def tensors(self) -> dict[str, Float32]:
        return self.stored.tensors(self.shapes)

    def target_ids(self) -> Int64:
        return self.stored.target_ids(self.config.draft_vocab_size, self.config.vocab_size)


def check_sizes(config: Sizes) -> None:
    """Raises HeadConfigInvalid, naming the field, for sizes that no head of any kind can have."""
    for name, size in _SIZES.items():
        if not fits(size, getattr(config, name)):
            raise HeadConfigInvalid(f"{name} is {getattr(config, name)!r:.80}; expected {expected(size)}")
    if config.heads % config.kv_heads:
        raise HeadConfigInvalid(f"{config.heads} attention heads are not a multiple of {config.kv_heads} key heads")
    if config.head_dim % 2:
        raise HeadConfigInvalid(f"head_dim is {config.head_dim}; RoPE needs an even one")
    if not 0.0 < config.norm_epsilon < 1.0:
        raise HeadConfigInvalid(f"rms_norm_eps is {config.norm_epsilon!r}; expected a number between 0 and 1")
    if config.draft_vocab_size > config.vocab_size:
        raise HeadConfigInvalid(f"draft_vocab_size {config.draft_vocab_size} exceeds vocab_size {config.vocab_size}")
    if not config.feature_layers:
        raise HeadConfigInvalid("feature layers: expected at least one")


class Layout:
    """kolm's own layout of a kind of head. All members of its config.json are required, and no other is allowed."""

    def __init__(self, fixed: Mapping[str, Any], members: Mapping[str, tuple[str, type]]) -> None:
        """`fixed`: members with a constant value, such as the layout's name. `members`: additional members of this
        kind.
        """
        self._fixed, self._members = fixed, {**_MEMBERS, **members}

    def document(self, config: Sizes) -> dict[str, Any]:
        """The members of config.json."""
        values = {member: getattr(config, attribute) for member, (attribute, _) in self._members.items()}
        return {**self._fixed, **{m: list(v) if isinstance(v, tuple) else v for m, v in values.items()}}

    def values(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The values by attribute. Raises HeadConfigInvalid, naming what is missing, unknown or mistyped."""
        known, name = self._members.keys() | self._fixed.keys(), self._fixed["layout"]
        missing, unknown = sorted(known - document.keys()), sorted(document.keys() - known)
        if missing or unknown:
            raise HeadConfigInvalid(f"config.json: missing {missing}, unknown {unknown}; {name} has {sorted(known)}")
        for member, value in self._fixed.items():
            if document[member] != value:
                raise HeadConfigInvalid(f"config.json: {member} is {document[member]!r:.80}; expected {value!r}")
        values = {attribute: typed(document, member, kind) for member, (attribute, kind) in self._members.items()}
        return values | {"feature_layers": layer_numbers(document, "feature_layers")}

    def write(
        self, directory: Path, config: Sizes, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Part]
    ) -> None:
        """Write a head's folder. `tensors` are the floats of these shapes, and `d2t` [draft_vocab_size] int64 (target
        id = draft id + d2t[draft id]) if the head has its own vocabulary. `t2d` [vocab_size] bool, which other engines
        require, is derived.

        Raises:
            HeadWeightsInvalid: a tensor is missing, unknown or of another shape.
        """
        found = {name: tensor.shape for name, tensor in tensors.items()}
        wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        if wrong:
            raise HeadWeightsInvalid(f"tensors {wrong} are missing, unknown or of another shape than by the config")
        whole = dict(tensors)
        if "d2t" in whole:
            drafted = np.zeros(config.vocab_size, np.bool_)
            drafted[np.arange(config.draft_vocab_size) + whole["d2t"].read().view(np.int64)] = True
            whole["t2d"] = Part.of(drafted)
        directory.mkdir(parents=True, exist_ok=True)
        write_parts(directory / WEIGHTS_FILE, whole)
        (directory / CONFIG_FILE).write_text(json.dumps(self.document(config), indent=2) + "\n")


def check_base(head: Sizes, base: TargetConfig) -> None:
    """Raises HeadForAnotherBase if the head's sizes do not fit the base."""
    needed = {"vocab_size": base.vocab_size, "target_hidden_size": base.hidden_size}
    if not head.own_embeddings:
        needed["hidden_size"] = base.hidden_size
    pairs = [(member, getattr(head, member), size) for member, size in needed.items()]
    wrong = [f"{member} {own} for {size}" for member, own, size in pairs if own != size]
    if beyond := [layer for layer in head.feature_layers if not 0 <= layer <= base.layers]:
        wrong.append(f"feature_layers {beyond} for a base of {base.layers} layers")
    if wrong:
        raise HeadForAnotherBase(f"made for another base: {', '.join(wrong)}; take a head trained on this base")


def typed(document: Mapping[str, Any], member: str, kind: type) -> Any:
    """`document[member]`, of exactly this type; a whole number is accepted for a float."""
    value = document[member]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise HeadConfigInvalid(f"config.json: {member} is {value!r:.80}; expected {kind.__name__}")
    return value


def typed_or(document: Mapping[str, Any], member: str, default: Any, kind: type) -> Any:
    """`typed`, or the default if the member is missing or null."""
    return default if document.get(member) is None else typed(document, member, kind)


def check_choices(
    members: Mapping[str, Any], supported: Mapping[str, tuple[object, ...]], *, within: str = "",
    known: Iterable[str] | None = None,
) -> None:  # fmt: skip
    """Refuse choices that a head's pass does not implement.

    Args:
        members: of config.json, or of its object `within`.
        supported: values by member; a missing or null member is not checked.
        known: members with any value; if given, every other member is refused.

    Raises HeadConfigInvalid, naming the member and its value.
    """
    place = f"{within}." if within else ""
    for name, value in members.items():
        values = supported.get(name)
        if values is not None and value is not None and not any(value == v and type(value) is type(v) for v in values):
            raise HeadConfigInvalid(
                f"config.json: {place}{name} is {value!r:.80}; supported: {' or '.join(map(repr, values))}; take a "
                "head that was trained with a supported value"
            )
        if values is None and known is not None and name not in known:
            raise HeadConfigInvalid(
                f"config.json: {place}{name} is {value!r:.80}, which is not supported; remove it if it does not change "
                "the head's computation"
            )


def layer_numbers(document: Mapping[str, Any], member: str) -> tuple[int, ...]:
    value = document.get(member)
    if not isinstance(value, list) or not value or any(type(layer) is not int for layer in value):
        raise HeadConfigInvalid(f"config.json: {member} is {value!r:.80}; expected a list of layer numbers")
    return tuple(value)


def published_sizes(kind: type[PretrainedConfig], members: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A published config.json parsed by transformers, with its defaults, and its sizes by the names of heads'
    configurations; `check_sizes` checks them. Raises HeadConfigInvalid.
    """
    for name in LARGEST.keys() & members.keys():  # transformers allocates lists of these lengths
        if isinstance(members[name], int | float) and members[name] > LARGEST[name]:
            raise HeadConfigInvalid(f"config.json: {name} is {members[name]!r:.80}; expected {expected(name)}")
    try:
        parsed: Any = kind(**{name: value for name, value in members.items() if name not in _NOT_SIZES})
        sizes = {name: getattr(parsed, _SIZES[name]) for name in _PUBLISHED}
        head_dim = int(getattr(parsed, "head_dim", None) or sizes["hidden_size"] // (sizes["heads"] or 1))
        more = {"norm_epsilon": float(parsed.rms_norm_eps), "rope": dict(parsed.rope_parameters or {})}
    except Exception as error:  # transformers raises many types here, each about these members
        raise HeadConfigInvalid(f"config.json: {error}") from error
    return parsed, {**sizes, "head_dim": head_dim, **more}


def rotation_of_head(config: Sizes) -> Rotation:
    """The rotation of a head, with inverse frequencies [head_dim / 2].

    Raises:
        HeadConfigInvalid: `rope_parameters` are of no known kind.
    """
    members: dict[str, Any] = {
        "hidden_size": config.heads * config.head_dim,
        "num_attention_heads": config.heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.trained_length,
        "rope_parameters": dict(config.rope),
    }
    try:
        parsed = LlamaConfig(**members)
        return rotation_of(dict(parsed.rope_parameters or {}), config.head_dim, config.trained_length)
    except Exception as error:  # many types, each about this member
        raise HeadConfigInvalid(f"rope_parameters {config.rope}: {error}") from error
