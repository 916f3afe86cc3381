"""Weights of a GGUF model in one file or several parts, mapped from disk, with transformers' names and row order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from gguf.constants import GGMLQuantizationType

from services.generation.target.architectures import gguf_families
from services.generation.target.arrays import Bytes, Int64
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture, WeightsInvalid
from services.generation.target.families import FAMILIES, GEMMA4_ASSISTANT
from services.generation.target.family import OWN_HEAD, Family
from services.generation.target.files.gguf_header import GgufHeader, GgufMetadata, TensorPlace, read_gguf_header
from services.generation.target.files.part_names import PartName, sibling_paths
from services.generation.target.files.stored_tensor import LAYOUTS, BlockLayout, StoredTensor, map_file
from services.generation.target.sizes import MOST_EXPERTS

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "token_embd_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    "nextn.pre_projection.weight": "pre_projection.weight",
    "nextn.post_projection.weight": "post_projection.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.([a-z_0-9.]+?)(?:\.(weight|bias|scale))?", re.ASCII)
_VECTORS = "exp_probs_b", "ssm_dt", "ssm_a", "ssm_d"
"""Modules that are a single vector, with or without the ending of a weight or a bias."""

ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each rotary frequency (Llama 3); part of the configuration."""
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""LongRoPE's divisors for a short and for a long context."""

_LAYOUTS = {int(layout.ggml): layout for layout in LAYOUTS.values()}
_INTERLEAVED = {"self_attn.q_proj": "head_count", "self_attn.k_proj": "head_count_kv"}
"""Modules whose rows converters reorder in some families, and the fields with their numbers of heads."""

_FOREIGN = {
    GEMMA4_ASSISTANT.gguf_name: "an assistant, which drafts for Gemma 4; name it mtp-NAME.gguf beside NAME.gguf",
    "clip": "the image part of a multimodal model (mmproj); name the file with the text part",
    "gptoss": "gpt-oss under the names of Ollama's engine; use a file from llama.cpp's converter",
}
"""Unsupported values of general.architecture: an explanation and a remedy."""
_PARTS = {
    "v.": "a part for images", "mm.": "a part for images", "a.": "a part for sound",
    "mtp.": "layers that predict further tokens",
}  # fmt: skip
"""Prefixes of tensors of other parts of a model, which Ollama's converters put into the same file."""

Stamp = tuple[Path, int, int, int, int]
"""A file's path, size, inode and times of modification and change; zeros for a missing file."""
_open_files: WeakValueDictionary[tuple[Stamp, ...], GgufFile] = WeakValueDictionary()

_NEXTN = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
    "embed_tokens": "embed_tokens",
    "shared_head_head": "lm_head",
}
"""Modules of the MTP block outside of its layer, in GGUF (`nextn.`) and in safetensors."""
DRAFT_TOKENS = "d2t"
"""The token of each row of an output matrix with fewer rows than the vocabulary."""
_WHOLE = {int(GGMLQuantizationType.I32): "<i4", int(GGMLQuantizationType.I64): "<i8"}
"""Types of whole numbers."""
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_AGAIN = "download all parts from one repository and revision"


def transformers_name(name: str, modules: Mapping[str, str]) -> str:
    """The name in transformers' model. Unknown names are unchanged. `modules`: the family's own names."""
    if match := _BLOCK.fullmatch(name):
        layer, module, kind = match.groups()
        if kind == "scale":  # a vector by itself
            module, kind = f"{module}.scale", "weight"
        if module in _VECTORS:
            kind = "weight"
        if kind and (found := modules.get(module) or _INSIDE.get(module)):
            return f"model.layers.{layer}.{found}.{kind}"
    return _OUTSIDE.get(name, name)


def _own_head_name(name: str, layers: int, modules: Mapping[str, str]) -> str:
    """The name in a checkpoint's `mtp.` of a tensor of the first block after `layers` layers; other names are
    unchanged.
    """
    block, _, rest = name.removeprefix("blk.").partition(".")
    if block != str(layers):
        return name
    module, _, kind = rest.removeprefix("nextn.").rpartition(".")
    if rest.startswith("nextn."):
        return f"{OWN_HEAD}{_NEXTN[module]}.{kind}" if module in _NEXTN else name
    found = transformers_name(name, modules)
    return found.replace(f"model.layers.{layers}.", f"{OWN_HEAD}layers.0.", 1)


def file_stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return path, 0, 0, 0, 0
    return path, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def is_gguf(path: Path) -> bool:
    """Whether a model's path names a GGUF file, which may be missing."""
    return path.suffix.lower() == ".gguf" or path.is_file()


@contextmanager
def held_open(path: Path) -> Iterator[None]:
    """Keep a GGUF file open within the block, so that it is read and checked once. Raises as `GgufFile.open` does."""
    file = GgufFile.open(path) if is_gguf(path) else None
    yield
    del file


class GgufFile:
    """An open model (a `weights.Weights`). Its files are unmapped once nothing refers to it or its tensors.

    `path` is the file, or the first part, and `paths` are all parts.
    """

    def __init__(self, paths: Sequence[Path], header: GgufHeader, data: Sequence[Bytes]) -> None:
        self.paths, self.path = tuple(paths), paths[0]
        path = self.path
        self.metadata: GgufMetadata = header.metadata
        self._data = data
        architecture = str(self.metadata.get("general.architecture"))
        modules = {name: module for family in gguf_families(architecture) for name, module in family.in_gguf.items()}
        self.is_assistant = architecture == GEMMA4_ASSISTANT.gguf_name  # all its layers predict further tokens
        mtp_layers = 0 if self.is_assistant else self.metadata.whole(f"{architecture}.nextn_predict_layers", 0)
        self.layers = self.metadata.whole(f"{architecture}.block_count", mtp_layers) - mtp_layers
        tensors = {name: place for name, place in header.tensors.items() if not (mtp_layers and self._is_mtp(name))}
        self._own_head = {
            _own_head_name(name, self.layers, modules): place
            for name, place in header.tensors.items() if name not in tensors
        }  # fmt: skip
        named = [(transformers_name(name, modules), place) for name, place in tensors.items()]
        parts = [part for name, place in named for part in _parts(path, name, place)]
        self._places: Mapping[str, TensorPlace] = dict(parts)
        if len(self._places) < len(parts):
            raise WeightsInvalid(f"{path}: a tensor has two names; expected each once")

    def _is_mtp(self, name: str) -> bool:
        """Whether a tensor belongs to a layer for multi-token prediction: the last blocks (`own_head`)."""
        block = _BLOCK.fullmatch(name)
        return block is not None and int(block[1]) >= self.layers

    @property
    def families(self) -> list[Family]:
        """Families with the file's general.architecture.

        Raises UnsupportedArchitecture for an unknown architecture, and for a file with parts other than a text model.
        """
        name = self.metadata.text("general.architecture")
        found = gguf_families(name)
        if not found or self.is_assistant:
            supported = dict.fromkeys(family.gguf_name for family in FAMILIES if family.gguf_name)
            hint = f": it is {_FOREIGN[name]}" if name in _FOREIGN else ""
            raise UnsupportedArchitecture(
                f"{self.path}: general.architecture: {name[:80]!r} is not supported{hint}; supported: "
                f"{', '.join(supported)}"
            )
        _check_text_alone(self.path, self._places)
        return found

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Map the file and check that every tensor is within it, overlaps no other and is of a supported type.

        If the model has several parts, `path` is the first and the others are in the same folder.

        Raises:
            ModelNotFound: there is no such file.
            WeightsInvalid: it is not a whole GGUF file, or has weights in an unsupported format; a part is missing,
                doubled, or of another model.
        """
        stamps = tuple(map(file_stamp, sibling_paths(path)))
        file = _open_files.get(stamps)
        if file is None:
            data = [map_file(path)]
            headers = [_checked_header(path, data[0])]
            paths = [path]
            if part_count(headers[0].metadata) > 1:
                check_first(path, headers[0].metadata)
                paths = sibling_paths(path)
                for number, part in enumerate(paths[1:], 2):
                    data.append(_mapped_part(part, number, len(paths)))
                    headers.append(_checked_header(part, data[-1]))
                headers = [joined(paths, headers)]
            file = _open_files[stamps] = cls(paths, headers[0], data)
        return file

    def own_head(self) -> dict[str, StoredTensor]:
        """The tensors of the MTP block, under names that begin with `mtp.`, split by expert. Empty if the file has no
        such block. Raises WeightsInvalid.
        """
        parts = [part for name, place in self._own_head.items() for part in _parts(self.path, name, place)]
        return {name: self._stored(name, place) for name, place in sorted(parts)}

    def draft_tokens(self) -> Int64 | None:
        """The tokens of an output matrix's rows (`d2t`), [rows]; None if it has a row for each token."""
        place = self._places.get(DRAFT_TOKENS)
        if place is None or place.ggml not in _WHOLE:
            return None
        data = self._data[place.part][place.offset : _end(self.path, DRAFT_TOKENS, place)]
        return data.view(_WHOLE[place.ggml]).astype(np.int64)

    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise WeightsInvalid if there is no such tensor, ConfigInvalid if it has another shape."""
        if name not in self._places:
            raise WeightsInvalid(f"{self.path}: {name} is missing; the file is not a whole model")
        if self.shape(name) != shape:
            found = list(self.shape(name))
            raise ConfigInvalid(f"{self.path}: {name} has the shape {found}, the metadata makes it {list(shape)}")

    def storage(self, name: str) -> str:
        return _LAYOUTS[self._places[name].ggml].storage

    def tensor(self, name: str) -> StoredTensor:
        stored = self._stored(name, self._places[name])
        return replace(stored, data=self._in_order(name, stored.data))

    def _stored(self, name: str, place: TensorPlace) -> StoredTensor:
        data = self._data[place.part][place.offset : _end(self.path, name, place)]
        return StoredTensor.of_bytes(name, _LAYOUTS[place.ggml].storage, place.shape, data)

    def _in_order(self, name: str, data: Bytes) -> Bytes:
        """Rows in transformers' order: in q and k, the first elements of all rotated pairs before the second elements.

        Files of interleaved families have the two rows of a pair next to each other.
        """
        module, family = ".".join(name.split(".")[3:5]), self.metadata.text("general.architecture")
        if module not in _INTERLEAVED or not any(each.gguf_interleaved for each in gguf_families(family)):
            return data
        heads = self.metadata.same_for_all(f"{family}.attention.head_count", self.layers)
        counts = self.metadata.per_layer(f"{family}.attention.{_INTERLEAVED[module]}", self.layers, heads, least=0)
        heads = max(counts, default=0)
        rows = self._places[name].shape[0]
        if heads == 0 or rows % (2 * heads):
            raise WeightsInvalid(f"{self.path}: {name} has {rows} rows; expected pairs for each of {heads} heads")
        pairs = data.reshape(heads, rows // heads // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(data.shape)


def _parts(path: Path, name: str, place: TensorPlace) -> list[tuple[str, TensorPlace]]:
    """Split a tensor of all experts, [experts, out, in] or [experts, out], by expert, and fused gate and up in two."""
    if name.endswith((".A_log.weight", ".mamba.D.weight", ".mamba.norm.weight")):  # Mamba-2's are columns or groups
        return [(name, replace(place, shape=(prod(place.shape),)))]
    if name.endswith("shared_expert_gate.weight") and len(place.shape) == 1:  # a matrix of one row
        return [(name, replace(place, shape=(1, *place.shape)))]
    if "{}" not in name or len(place.shape) != (2 if name.endswith(".bias") else 3):
        return [(name, place)]
    count, *shape = place.shape
    if count > MOST_EXPERTS:
        raise WeightsInvalid(f"{path}: {name.format('*')} has {count} experts; supported: at most {MOST_EXPERTS}")
    size = (_end(path, name, place) - place.offset) // count
    modules = ("gate_proj", "up_proj") if ".gate_up_proj." in name else ("gate_up_proj",)
    if shape[0] % len(modules) or size % len(modules):
        raise WeightsInvalid(f"{path}: {name.format('*')} has {shape[0]} rows; expected equally many of gate and of up")
    shape[0], size = shape[0] // len(modules), size // len(modules)
    places = (replace(place, shape=tuple(shape), offset=place.offset + at * size) for at in range(count * len(modules)))
    names = (name.format(n).replace("gate_up_proj", module) for n in range(count) for module in modules)
    return list(zip(names, places, strict=True))


def _checked_header(path: Path, data: Bytes) -> GgufHeader:
    header = read_gguf_header(path, data.data)
    _check_places(path, header.tensors, len(data))
    return header


def _mapped_part(path: Path, number: int, count: int) -> Bytes:
    if not path.is_file():
        raise WeightsInvalid(f"{path}: part {number} of {count} is missing; download it into the same folder")
    return map_file(path)


def _check_text_alone(path: Path, names: Iterable[str]) -> None:
    found = {part: name for name in names for start, part in _PARTS.items() if name.startswith(start)}
    if found:
        parts = " and ".join(f"{part} ({name})" for part, name in sorted(found.items()))
        raise UnsupportedArchitecture(
            f"{path}: contains {parts}, as Ollama's converters write it; supported: a text model alone: use a file "
            "from llama.cpp's converter, for example hf:OWNER/REPOSITORY"
        )


def _check_places(path: Path, places: Mapping[str, TensorPlace], size: int) -> None:
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].offset):
        if "{" in name or "}" in name:  # names of all experts' tensors are templates of transformers' names
            raise WeightsInvalid(f"{path}: tensor {name!r:.80} has a brace in its name; the file is damaged")
        if place.offset < end:
            raise WeightsInvalid(f"{path}: tensor {name} overlaps another; the file is damaged")
        end = _end(path, name, place)
        if end > size:
            raise WeightsInvalid(
                f"{path}: tensor {name} ends at byte {end}, the file at {size}; it is truncated or damaged: "
                "download or copy it again"
            )


def _end(path: Path, name: str, place: TensorPlace) -> int:
    """The end of a tensor in the file. Raises WeightsInvalid if its type is unsupported or does not fit its shape."""
    if name == DRAFT_TOKENS and place.ggml in _WHOLE:
        return place.offset + prod(place.shape) * np.dtype(_WHOLE[place.ggml]).itemsize
    layout = _layout(path, name, place.ggml)
    if layout.weights > 1 and len(place.shape) == 1:
        raise WeightsInvalid(f"{path}: tensor {name} is a vector stored as {layout.storage}; expected plain numbers")
    try:
        return place.offset + prod(place.shape[:-1]) * layout.row_bytes(place.shape[-1])
    except ValueError as error:
        raise WeightsInvalid(f"{path}: tensor {name}: {error}; the file is damaged") from error


def _layout(path: Path, name: str, ggml: int) -> BlockLayout:
    if ggml in _LAYOUTS:
        return _LAYOUTS[ggml]
    known = {int(kind): kind.name.lower() for kind in GGMLQuantizationType}
    raise WeightsInvalid(
        f"{path}: tensor {name} is stored as {known.get(ggml, f'ggml type {ggml}')}, which is not supported; choose a "
        f"file of these: {', '.join(LAYOUTS)}"
    )


def part_count(metadata: GgufMetadata) -> int:
    """The number of parts that the file is one of; 1 for a whole model."""
    return metadata.whole(_COUNT, 1, least=1)


def check_first(path: Path, metadata: GgufMetadata) -> None:
    """Raises WeightsInvalid unless `path` names the first of the parts that its metadata counts."""
    count, number, name = part_count(metadata), metadata.whole(_NUMBER, 0) + 1, PartName.of(path.name)
    if name is None or name.count != count:
        raise WeightsInvalid(
            f"{path}: is part {number} of {count} by its metadata; expected it under the name "
            f"NAME-{number:05}-of-{count:05}.gguf, as it was published"
        )
    if (name.number, number) != (1, 1):
        first = path.with_name(next(name.siblings())).name
        raise WeightsInvalid(f"{path}: is part {number} of {count}; name the first part, {first}")


def joined(paths: Sequence[Path], headers: Sequence[GgufHeader]) -> GgufHeader:
    """One header for all parts, as llama-gguf-split writes them: the first has all metadata, and tensors get the number
    of their part.

    Each part has tensors of its own, `split.no` (its number, from 0), `split.count` and `split.tensors.count` (the
    number of tensors of all parts).

    Raises:
        WeightsInvalid: a part has another number than its name, belongs to another model, or repeats a tensor.
    """
    first, count = headers[0].metadata, len(paths)
    expected = first.whole(_TENSORS)
    tensors: dict[str, TensorPlace] = {}
    for at, (path, header) in enumerate(zip(paths, headers, strict=True)):
        metadata = header.metadata
        found = metadata.whole(_NUMBER) + 1, part_count(metadata)
        if found != (at + 1, count):
            raise WeightsInvalid(
                f"{path}: is part {found[0]} of {found[1]} by its metadata; expected part {at + 1} of {count}: "
                "download it again"
            )
        foreign = metadata.whole(_TENSORS) != expected or not tensors.keys().isdisjoint(header.tensors)
        if foreign or metadata.get("general.architecture", own := first.get("general.architecture")) != own:
            raise WeightsInvalid(f"{path}: part {at + 1} of {count} is not of the model of {paths[0].name}: {_AGAIN}")
        tensors |= {name: replace(place, part=at) for name, place in header.tensors.items()}
    if len(tensors) != expected:
        raise WeightsInvalid(f"{paths[0]}: {count} parts with {len(tensors)} tensors; expected {expected}: {_AGAIN}")
    return GgufHeader(first, tensors)
