"""Reads a head's folder: finds its layout, checks it, and compares it with the base. safetensors only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.config import (
    HeadConfig,
    HeadConfigInvalid,
    HeadNotFound,
    HeadWeightsInvalid,
    head_shapes,
)
from services.generation.drafting.eagle3.head import Head, Origin
from services.generation.drafting.eagle3.layout import CONFIG_FILE, LAYOUT, WEIGHTS_FILE, parse_config
from services.generation.drafting.eagle3.published import default_layers, read_safeailab, read_speculators
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.json_object import read_json_object
from services.generation.target.files.safetensors_file import FLOATS, floats, read_parts
from services.generation.target.files.safetensors_parts import Part

_WHOLE = {"I64": "<i8", "I32": "<i4"}
_VERIFIER = ("verifier_norm.weight", "verifier_lm_head.weight")  # speculators' copies of the base, for training only


def load_head(directory: Path, base: TargetConfig) -> Head:
    """Read a head's folder in any of the three layouts; its weights come out in float32.

    Raises:
        HeadNotFound: the folder, config.json or model.safetensors is missing.
        HeadConfigInvalid: config.json is of no known layout, or a member is missing or wrong; the message names it.
        HeadWeightsInvalid: the file is truncated; a tensor is missing, unknown, or of another shape, dtype or range.
        HeadForAnotherBase: vocabulary, hidden size or layers are not those of `base`.
    """
    document = read_document(directory)
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        raise HeadNotFound(f"{directory}: no {WEIGHTS_FILE}; convert other formats first, pickle is not read")
    try:
        weights = read_parts(path)
    except WeightsInvalid as error:
        raise HeadWeightsInvalid(str(error)) from error
    return _read(document, weights, base)


def read_document(directory: Path) -> dict[str, Any]:
    """config.json of a head's folder. Raises HeadNotFound or HeadConfigInvalid."""
    return read_json_object(directory / CONFIG_FILE, "a head's folder", HeadNotFound, HeadConfigInvalid)


def origin_of(document: dict[str, Any]) -> Origin:
    """Which layout a config.json is in. Raises HeadConfigInvalid if it is in none that is known."""
    if document.get("layout") == LAYOUT:
        return "kolm"
    if document.get("speculators_model_type") == "eagle3" or "transformer_layer_config" in document:
        return "speculators"
    if "draft_vocab_size" in document and "architectures" in document:
        return "safeailab"
    raise HeadConfigInvalid(
        f"config.json: of no known layout; expected layout {LAYOUT}, speculators_model_type eagle3, or a Llama config "
        "with draft_vocab_size (SafeAILab, SpecForge)"
    )


def _read(document: dict[str, Any], weights: Mapping[str, Part], base: TargetConfig) -> Head:
    origin = origin_of(document)
    stored = {_name(name, origin): name for name in weights if name not in _VERIFIER}
    config = _config(origin, document, stored.keys(), base)
    config.check_base(base)
    _check_names(config, stored, d2t_required=config.draft_vocab_size < config.vocab_size)
    for name, shape in head_shapes(config).items():
        _check_tensor(name, weights[stored[name]], shape)
    tensors = {name: floats(name, weights[stored[name]]) for name in head_shapes(config)}
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise HeadWeightsInvalid(f"weights: {name} holds a value that is infinite or not a number")
    others = () if origin == "kolm" else _other_layers(config, base)
    return Head(origin, config, tensors, _target_ids(config, stored, weights), others)


def _config(origin: Origin, document: dict[str, Any], names: Any, base: TargetConfig) -> HeadConfig:
    if origin == "kolm":
        return parse_config(document)
    return (read_speculators if origin == "speculators" else read_safeailab)(document, names, base)


def _name(name: str, origin: Origin) -> str:
    """A tensor's name in kolm's layout."""
    return name.replace("layers.0.", "midlayer.", 1) if origin == "speculators" else name


def _check_names(config: HeadConfig, stored: dict[str, str], *, d2t_required: bool) -> None:
    expected = {*head_shapes(config), *(["d2t"] if d2t_required else [])}
    missing = sorted(expected - stored.keys())
    spare = {"d2t", "t2d"}
    unknown = sorted(
        stored[name] for name in stored.keys() - expected - spare if not name.endswith("rotary_emb.inv_freq")
    )
    if missing or unknown:
        raise HeadWeightsInvalid(f"weights: missing {missing}, unknown {unknown}; does config.json fit them?")


def _check_tensor(name: str, part: Part, shape: tuple[int, ...], dtypes: Sequence[str] = FLOATS) -> None:
    if part.shape != shape:
        raise HeadWeightsInvalid(f"weights: {name} has shape {list(part.shape)}; config.json makes it {list(shape)}")
    if part.dtype not in dtypes:
        raise HeadWeightsInvalid(f"weights: {name} has dtype {part.dtype}; expected one of {', '.join(dtypes)}")


def _target_ids(config: HeadConfig, stored: dict[str, str], weights: Mapping[str, Part]) -> NDArray[np.int64]:
    """Offsets to ids: target id = draft id + d2t[draft id]. Without a d2t both vocabularies are one."""
    own = np.arange(config.draft_vocab_size, dtype=np.int64)
    if "d2t" not in stored:
        return own
    _check_tensor("d2t", weights["d2t"], own.shape, tuple(_WHOLE))
    ids: NDArray[np.int64] = own + weights["d2t"].read().view(_WHOLE[weights["d2t"].dtype])
    twice = len(ids) - len(np.unique(ids))
    if ids.min() < 0 or ids.max() >= config.vocab_size or twice:
        raise HeadWeightsInvalid(
            f"weights: d2t leads to ids from {ids.min()} to {ids.max()}, {twice} of them twice; expected different ids "
            f"from 0 to {config.vocab_size - 1}"
        )
    if "t2d" in stored:
        _check_tensor("t2d", weights["t2d"], (config.vocab_size,), ("BOOL",))
        if not np.array_equal(np.flatnonzero(weights["t2d"].read()), np.sort(ids)):
            raise HeadWeightsInvalid("weights: t2d and d2t name different tokens")
    return ids


def _other_layers(config: HeadConfig, base: TargetConfig) -> tuple[tuple[int, ...], ...]:
    """Published ids are read as inputs by some engines and as outputs by others: the neighbours, and the default."""
    taken = config.feature_layers
    shifted = [tuple(layer + by for layer in taken) for by in (-1, 1)]
    candidates = [taken, *shifted, default_layers(base)]
    fitting = [c for c in dict.fromkeys(candidates) if len(c) == len(taken) and all(0 <= i <= base.layers for i in c)]
    return tuple(c for c in fitting if c != taken)


def with_layers(head: Head, feature_layers: tuple[int, ...]) -> Head:
    """The same head, reading the streams of other layers."""
    return replace(head, config=replace(head.config, feature_layers=feature_layers))
