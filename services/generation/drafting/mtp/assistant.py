"""Gemma 4's assistant: a small model whose layers have queries alone and read the target's keys and values.

Tensors and computation are those of transformers' Gemma4AssistantForCausalLM. Its search by centroids only chooses the
tokens whose logits are computed; here all are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from services.generation.drafting.heads import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    HeadConfigInvalid,
    HeadForAnotherBase,
    HeadWeightsInvalid,
    Stored,
    layer_numbers,
    read_document,
    read_weights,
    typed,
)
from services.generation.drafting.mtp.block_weights import MtpConfig, cid_of_tensors
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig, config_within, read_gguf
from services.generation.target.config.layer_specs import EMBEDDING, HEAD, LayerSpec, layer_specs
from services.generation.target.errors import TargetError, WeightsInvalid
from services.generation.target.families import BY_NAME, GEMMA4, GEMMA4_ASSISTANT
from services.generation.target.family import NORM
from services.generation.target.files.gguf_file import ROPE_FACTORS, GgufFile, is_gguf
from services.generation.target.files.part_names import sidecar_path
from services.generation.target.files.safetensors import Part, parts_of, write_parts
from services.generation.target.sizes import expected, fits

JOINT, PROJECTION = "pre_projection.weight", "post_projection.weight"
LAYOUT = "kolm.mtp.v1"
ARCHITECTURE = "Gemma4AssistantForCausalLM"
KNOWN_BY = f"layout {LAYOUT}, or architectures {ARCHITECTURE}"
_SEARCH = "masked_embedding."  # tensors of the search by centroids


@dataclass(frozen=True, slots=True)
class AssistantLayer:
    """A layer's description, and the target's layer whose keys and values it reads."""

    spec: LayerSpec
    source: int


@dataclass(frozen=True, slots=True, eq=False)
class Assistant:
    """An assistant in memory, checked against its base; pure data, `AssistantPass` computes with it. `cid`: of the
    tensors of a sidecar; the identifier of a folder is that of its manifest.
    """

    kind: ClassVar[str] = "mtp"

    origin: str
    base: TargetConfig
    own: TargetConfig  # of its own layers
    tensors: Mapping[str, Float32]  # by the names of `assistant_shapes`
    cid: str = ""

    @property
    def config(self) -> MtpConfig:
        return MtpConfig((self.base.layers,), self.base.hidden_size)


def is_assistant(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an assistant."""
    return document.get("layout") == LAYOUT or _architecture(document) == ARCHITECTURE


def _architecture(document: Mapping[str, Any]) -> object:
    found = document.get("architectures")
    return found[0] if isinstance(found, list) and found else None


def load_assistant(directory: Path, base: TargetConfig) -> Assistant:
    """Read an assistant's folder, as published or in kolm's layout: see `HeadKind.load`."""
    document, own, stored = _described(directory, base)
    tensors = stored.tensors(assistant_shapes(own, base, HEAD in stored.parts))
    return Assistant("kolm" if document.get("layout") == LAYOUT else "transformers", base, own, tensors)


def read_assistant_beside(path: Path, base: TargetConfig) -> Assistant | None:
    """The assistant in the sidecar of a GGUF file, as llama.cpp converts it; None if there is no sidecar or another
    one, or if models of this family have blocks of their own.

    Raises:
        HeadConfigInvalid: metadata of the sidecar is missing or wrong; the message names it.
        HeadWeightsInvalid: the sidecar is damaged, or a tensor is missing, unknown, or of another shape or value.
        HeadForAnotherBase: the base is another model than Gemma 4, or of other sizes.
    """
    sidecar = sidecar_path(path) if is_gguf(path) and not BY_NAME[base.architecture].own_head else None
    if sidecar is None:
        return None
    try:
        file = GgufFile.open(sidecar)
        if not file.is_assistant:
            return None
        own = read_gguf(file, GEMMA4_ASSISTANT)
        wide = file.metadata.whole(f"{GEMMA4_ASSISTANT.gguf_name}.embedding_length_out", least=1)
        stored = {name: file.tensor(name) for name in sorted(file.names() - {ROPE_FACTORS})}
    except WeightsInvalid as error:
        raise HeadWeightsInvalid(str(error)) from error
    except TargetError as error:
        raise HeadConfigInvalid(str(error)) from error
    _check_base({"backbone_hidden_size": wide}, own, base)
    shapes = assistant_shapes(own, base, HEAD in stored)
    parts = Stored({name: Part.of(tensor.values()) for name, tensor in stored.items()})
    parts.check_names(shapes, d2t_required=False)
    return Assistant("gguf", base, own, parts.tensors(shapes), cid_of_tensors(stored))


def write_assistant(directory: Path, source: Path, base: TargetConfig) -> None:
    """Write the assistant in `source` in kolm's layout, with every value as it is stored. Raises HeadError."""
    document, own, stored = _described(source, base)
    names = assistant_shapes(own, base, HEAD in stored.parts)
    members = {
        "layout": LAYOUT, "architectures": [ARCHITECTURE], "model_type": "gemma4_assistant",
        "hidden_size": own.hidden_size, "vocab_size": own.vocab_size, "draft_vocab_size": own.vocab_size,
        "feature_layers": [base.layers], "backbone_hidden_size": base.hidden_size,
        "text_config": document["text_config"],
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    write_parts(directory / WEIGHTS_FILE, {name: stored.parts[name] for name in names})
    (directory / CONFIG_FILE).write_text(json.dumps(members, indent=2) + "\n")


def assistant_layers(own: TargetConfig, base: TargetConfig) -> tuple[AssistantLayer, ...]:
    """The layers for the target's kernels. Each reads the keys of the base's last layer of its kind, sliding or full,
    that has keys of its own. Raises HeadForAnotherBase if the base has no such layer with heads of the same sizes.
    """
    layers = []
    for number, spec in enumerate(layer_specs(own)):
        windowed = bool(own.windows[number])
        alike = [
            layer for layer in range(base.layers)
            if bool(base.windows[layer]) == windowed and base.heads_of(layer).source is None
        ]  # fmt: skip
        sizes = (spec.kv_heads, spec.head_dim)
        if not alike or (base.heads_of(alike[-1]).kv_heads, base.heads_of(alike[-1]).head_dim) != sizes:
            raise HeadForAnotherBase(
                f"layer {number} of the assistant reads {sizes[0]} key heads of {sizes[1]} elements, in a layer "
                f"{'with a' if windowed else 'without'} window; this base has none; take the assistant of this base"
            )
        window = spec.window + 1 if windowed else 0  # transformers' bound for queries outside of the text is inclusive
        spec = replace(
            spec, qkv=spec.qkv[:1], head_norms=spec.head_norms[:1], value_norms=False, window=window, source=alike[-1]
        )
        layers.append(AssistantLayer(spec, alike[-1]))
    return tuple(layers)


def assistant_shapes(own: TargetConfig, base: TargetConfig, has_output: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor; matrices are [out, in]. `has_output`: the output matrix is not the embedding."""
    hidden, wide = own.hidden_size, base.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        JOINT: (hidden, 2 * wide), PROJECTION: (wide, hidden), NORM: (hidden,),
        HEAD if has_output else EMBEDDING: (own.vocab_size, hidden),
    }  # fmt: skip
    for layer in assistant_layers(own, base):
        shapes |= layer.spec.shapes(hidden)
    return shapes


def _described(directory: Path, base: TargetConfig) -> tuple[Mapping[str, Any], TargetConfig, Stored]:
    """Document, configuration and stored tensors for this base. Tensors are not read yet."""
    document = read_document(directory)
    own = _read_config(document)
    _check_base(document, own, base)
    parts = parts_of(None, read_weights(directory))
    if HEAD in parts:  # which the embedding, if it is there too, repeats
        parts = {name: part for name, part in parts.items() if name != EMBEDDING}
    stored = Stored({name: part for name, part in parts.items() if not name.startswith(_SEARCH)})
    stored.check_names(assistant_shapes(own, base, HEAD in stored.parts), d2t_required=False)
    return document, own, stored


def _read_config(document: Mapping[str, Any]) -> TargetConfig:
    for member in ("text_config", "backbone_hidden_size"):
        if member not in document:
            raise HeadConfigInvalid(f"config.json: {member} is missing; an assistant names its layers and its base")
    if not fits("hidden_size", typed(document, "backbone_hidden_size", int)):
        found = document["backbone_hidden_size"]
        raise HeadConfigInvalid(f"config.json: backbone_hidden_size is {found}; expected {expected('hidden_size')}")
    members = dict(typed(document, "text_config", dict))
    unsupported = {
        "hidden_size_per_layer_input": 0, "enable_moe_block": False, "use_double_wide_mlp": False,
        "use_bidirectional_attention": None,
    }  # fmt: skip
    for member, value in unsupported.items():
        if members.get(member, value) not in (value, None):
            raise HeadConfigInvalid(
                f"config.json: text_config.{member} is {members[member]!r:.80}; supported in an assistant: {value}"
            )
    try:  # its layers' keys are another model's; all else is read as of a model
        return config_within(GEMMA4, {**members, **unsupported, "num_kv_shared_layers": 0}, "config.json: text_config")
    except TargetError as error:
        raise HeadConfigInvalid(str(error)) from error


def _check_base(document: Mapping[str, Any], own: TargetConfig, base: TargetConfig) -> None:
    if base.architecture != GEMMA4.name:
        raise HeadForAnotherBase(
            f"an assistant of Gemma 4, for a base of {base.architecture}; take a head of this base"
        )
    pairs = {"backbone_hidden_size": (document["backbone_hidden_size"], base.hidden_size)}
    pairs["vocab_size"] = own.vocab_size, base.vocab_size
    if document.get("layout") == LAYOUT and (layers := layer_numbers(document, "feature_layers")) != (base.layers,):
        raise HeadForAnotherBase(f"made for another base: feature_layers {list(layers)} for {base.layers} layers")
    if wrong := [f"{name} {found} for {wanted}" for name, (found, wanted) in pairs.items() if found != wanted]:
        raise HeadForAnotherBase(f"made for another base: {', '.join(wrong)}; take the assistant of this base")
    assistant_layers(own, base)
