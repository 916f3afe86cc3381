"""Tensors of safetensors files under the names of `config.layer_specs`, split by expert."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from services.generation.target.arrays import Bytes, Float32, address
from services.generation.target.errors import WeightsInvalid
from services.generation.target.family import CONVOLUTION, NORM, OWN_HEAD, Family, StackedExperts
from services.generation.target.files.stored_tensor import StoredTensor, map_file
from services.generation.target.sizes import MOST_EXPERTS

FLOATS = ("F32", "BF16", "F16")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors", re.ASCII)
_STORAGES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "MXFP4": "mxfp4"}
_WRITTEN = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "BOOL": "bool"}
"""Safetensors' dtypes, and its writer's names of them."""
_DTYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
"""Safetensors' dtypes by numpy's."""
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_BARE = (
    ".sinks",
    ".layer_scalar",
    ".router.scale",
    ".router.per_expert_scale",
    ".expert_bias",
    ".dt_bias",
    ".A_log",
    ".D",
)
"""Ends of names of vectors that belong to no module."""
_CONVOLVED = f".{CONVOLUTION}.weight", ".conv1d.weight"
_GROUP, _PACKED = 32, 16
"""Weights of an MXFP4 block, and its bytes."""
_STACKED = r"(.*\.{0.module})\.({0.gate_up}|{0.down})(?:\.weight)?(_\w+)?"
"""Names of tensors of all experts of a layer, with a `StackedExperts` for {0}."""
_TEXT = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""Prefixes of the text part in multimodal checkpoints, and in a text model."""
_OTHERS = re.compile(
    r"(model\.)?(visual|vision_tower|vision_model|audio_tower|multi_modal_projector|embed_vision|embed_audio)\..*"
)
"""Names of tensors of other modalities, which are not read."""
_OWN_HEAD = re.compile(r"(?:model\.|language_model\.|model\.language_model\.)?mtp\.(.*)")
"""Names of tensors of the block for multi-token prediction, which `SafetensorsFiles.own_head` reads."""


class SafetensorsFiles:
    """The open files of one model (a `weights.Weights`)."""

    def __init__(self, path: Path, parts: Mapping[str, Part]) -> None:
        self.path = path
        self._parts = parts

    @classmethod
    def open(cls, directory: Path, family: Family | None = None) -> SafetensorsFiles:
        """Open the weights of a model. Tensors get the names of `family`.

        Raises WeightsInvalid: a file is missing, damaged or disagrees with the index, there are two sets of weights, or
        experts in an unknown form.
        """
        return cls(directory, parts_of(family, read_files(directory)))

    @classmethod
    def own_head(cls, directory: Path, family: Family) -> dict[str, StoredTensor]:
        """The tensors of the MTP block, with names that begin with `mtp.`, split by expert; empty if the checkpoint has
        no such block. Raises WeightsInvalid as `open` and `storage` do.
        """
        named = ((_OWN_HEAD.fullmatch(name), part) for name, part in read_files(directory).items())
        entries = _once((f"{OWN_HEAD}{match[1]}", part) for match, part in named if match)
        files = cls(directory, _once(_by_module(family.stacked, entries)))
        return {name: files.tensor(name) for name in sorted(files.names())}

    def names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def storage(self, name: str) -> str:
        dtype = self._parts[name].dtype
        if dtype not in _STORAGES:
            raise WeightsInvalid(
                f"{self.path}: {name} has dtype {dtype}; expected one of {', '.join(_STORAGES)}: use the original model"
            )
        return _STORAGES[dtype]

    def tensor(self, name: str) -> StoredTensor:
        part = self._parts[name]
        return StoredTensor.of_bytes(name, self.storage(name), part.shape, part.read())


def read_parts(path: Path) -> dict[str, Part]:
    """The tensors of one file by their names in it.

    Raises:
        ModelNotFound: there is no such file.
        WeightsInvalid: it is damaged, or something other than safetensors.
    """
    data = map_file(path)
    if data[:4].tobytes() == b"GGUF":
        raise WeightsInvalid(f"{path}: a GGUF file, expected safetensors; name it {path.stem}.gguf")
    try:
        with safe_open(path, framework="numpy"):
            pass  # this checks the header: sizes fit dtypes and shapes, and tensors fill the file without a gap
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header: dict[str, Any] = json.loads(data[8:begin].tobytes())
        return {name: _entry(field, data[begin:]) for name, field in header.items() if name != "__metadata__"}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsInvalid(f"{path}: not a whole safetensors file ({error}); download or copy it again") from error


def write_parts(path: Path, parts: Mapping[str, Part]) -> None:
    """Write one file, which `read_parts` reads. Raises OSError, or KeyError for a dtype outside of `_WRITTEN`."""
    held = {name: np.ascontiguousarray(part.read()) for name, part in parts.items()}  # alive while they are written
    specs = {
        name: TensorSpec(
            dtype=_WRITTEN[part.dtype], shape=part.shape, data_ptr=address(held[name]), data_len=held[name].nbytes
        )
        for name, part in parts.items()
    }
    serialize_file(specs, path)


def _entry(field: dict[str, Any], data: Bytes) -> Part:
    begin, end = field["data_offsets"]
    return Part(field["dtype"], tuple(field["shape"]), lambda: data[begin:end])


def floats(name: str, part: Part) -> Float32:
    """The values of a tensor of `FLOATS` in float32, exact; a copy."""
    return StoredTensor.of_bytes(name, _STORAGES[part.dtype], part.shape, part.read()).values().copy()


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of the model: a single file, or the shards that the index names, in order.

    Raises:
        WeightsInvalid: there are no files, the index is not readable or names a file outside the directory, or the
            directory contains a second set of weights.
    """
    weight_map = _weight_map(directory)
    names = [SINGLE] if weight_map is None else sorted(set(weight_map.values()))
    if weight_map is None and not (directory / SINGLE).exists():
        raise WeightsInvalid(f"{directory}: no {SINGLE} and no {INDEX}; pickle is not read")
    present = {path.name for path in directory.iterdir()}
    for name in names:
        if name not in present or not (directory / name).is_file():  # any text may be in the index
            raise WeightsInvalid(
                f"{directory / INDEX}: shard {name!r:.80} is not a file of {directory}; download the model again"
            )
    if others := other_weights(directory, names):
        read = SINGLE if weight_map is None else f"the {len(names)} files that {INDEX} names"
        raise WeightsInvalid(
            f"{directory}: two sets of weights: {', '.join(others)}, and {read}; keep the files of one set, and move "
            "the others away"
        )
    return [directory / name for name in names]


def other_weights(directory: Path, read: Collection[str]) -> list[str]:
    """Sorted names of a directory's weight files that are not in `read`."""
    present = (path.name for path in directory.iterdir())
    return sorted(name for name in present if (name == SINGLE or _SHARD.fullmatch(name)) and name not in read)


def _weight_map(directory: Path) -> dict[str, str] | None:
    """The index, the file of each tensor, or None. Raises WeightsInvalid."""
    path = directory / INDEX
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsInvalid(f"{path}: not a readable index of weight shards: {error!r:.200}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise WeightsInvalid(f"{path}: weight_map is {found!r:.80}; expected an object from tensors to files")
    return found


def read_files(directory: Path) -> dict[str, Part]:
    """The tensors of all files of a set of weights, by their names in the files. Raises as `weight_files` does, and
    WeightsInvalid for a damaged file and one that disagrees with the index.
    """
    weight_map, entries = _weight_map(directory), dict[str, Part]()
    for path in weight_files(directory):
        parts = read_parts(path)
        if weight_map is not None:
            _check_listed(directory / INDEX, weight_map, path.name, parts.keys())
        entries |= parts
    return entries


def _check_listed(index: Path, weight_map: Mapping[str, str], file: str, found: Collection[str]) -> None:
    """Compare the tensors of one file with the index. This finds tensors that are in two files, too."""
    for name in found:
        if weight_map.get(name) != file:
            listed = f"in {weight_map[name]}" if name in weight_map else "in no file"
            raise WeightsInvalid(
                f"{index}: lists {name} {listed}, but it is in {file}: the files are of different sets of weights; "
                "download the model again into an empty folder"
            )
    missing = sorted(name for name, shard in weight_map.items() if shard == file and name not in found)
    if missing:
        raise WeightsInvalid(
            f"{index}: lists {missing[0]} in {file}, which does not have it: the files are of different sets of "
            "weights; download the model again into an empty folder"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A tensor: safetensors' dtype, or MXFP4 in GGUF's blocks; the shape in weights; a reader of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Bytes]

    @classmethod
    def of(cls, values: NDArray[np.float32 | np.int64 | np.bool_]) -> Part:
        """The values of an array. Raises KeyError for another dtype."""
        whole = np.ascontiguousarray(values)
        return cls(_DTYPES[whole.dtype.name], values.shape, lambda: whole.reshape(-1).view(np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class _Stack:
    """All experts' tensors [count, outputs] or [count, outputs, inputs]; `rows` reads the bytes of an expert's rows."""

    dtype: str
    shape: tuple[int, ...]
    rows: Callable[[int, slice], Bytes]


def parts_of(family: Family | None, entries: Mapping[str, Part]) -> dict[str, Part]:
    """Tensors under the names of `config.layer_specs`.

    Raises WeightsInvalid for stacked experts of unknown shapes, and for a tensor with two names.
    """
    if family and (family.multimodal or family.delta):
        named = ((in_text_part(name), part) for name, part in entries.items())
        entries = _once((name, part) for name, part in named if name)
    if family and family.final_norm != NORM:
        entries = _once((NORM if name == family.final_norm else name, part) for name, part in entries.items())
    return _once(_by_module(family.stacked if family else None, entries))


def _by_module(stacked: StackedExperts | None, entries: Mapping[str, Part]) -> Iterator[tuple[str, Part]]:
    place = re.compile(_STACKED.format(stacked) if stacked else "(?!)")
    for name, part in entries.items():
        match = place.fullmatch(name)
        if name.endswith(_CONVOLVED) and len(part.shape) == 3:  # [channels, 1, taps]
            yield name, replace(part, shape=(part.shape[0], part.shape[1] * part.shape[2]))
        elif stacked is None or match is None:
            yield f"{name}.weight" if name.endswith(_BARE) else name, part
        elif match[3] != "_scales":
            yield from _experts(match, _stack(stacked, entries, match), stacked)
        elif f"{name.removesuffix('_scales')}_blocks" not in entries:  # scales are read together with their blocks
            yield name, part


def _once(named: Iterable[tuple[str, Part]]) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for name, part in named:
        if name in found:
            raise WeightsInvalid(f"{name} has two names in the checkpoint; expected each tensor once: use the original")
        found[name] = part
    return found


def in_text_part(name: str) -> str | None:
    """A tensor's name in a text model, or None for a tensor of another part."""
    if _OWN_HEAD.fullmatch(name):
        return None
    for prefix, replacement in _TEXT:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return None if _OTHERS.fullmatch(name) else name


def _stack(stacked: StackedExperts, entries: Mapping[str, Part], match: re.Match[str]) -> _Stack:
    part, kind = entries[match[0]], match[3]
    scales = entries.get(match[0].removesuffix("_blocks") + "_scales")
    outer = part.shape[:-1]
    in_bytes = scales and part.dtype == scales.dtype == "U8" and part.shape == (*scales.shape, _PACKED)
    if kind == "_blocks" and scales and in_bytes and len(outer) == 3:
        return _Stack("MXFP4", (*outer[:-1], outer[-1] * _GROUP), partial(_mxfp4_rows, part, scales))
    if len(part.shape) == (2 if kind == "_bias" else 3) and kind in (None, "_bias") and part.dtype in _BYTES:
        transposed = stacked.transposed and kind is None
        count, *rest = part.shape
        return _Stack(
            part.dtype, (count, *(rest[::-1] if transposed else rest)), partial(_plain_rows, part, transposed)
        )
    raise WeightsInvalid(
        f"{match[0]} has dtype {part.dtype} and shape {list(part.shape)}; expected all experts' matrices, biases, or "
        "MXFP4 blocks with their scales, all in U8: use the original model"
    )


def _experts(match: re.Match[str], stack: _Stack, stacked: StackedExperts) -> Iterator[tuple[str, Part]]:
    """The tensors of each expert in a stack, by name."""
    count, outputs, *inputs = stack.shape
    if count > MOST_EXPERTS:
        raise WeightsInvalid(f"{match[0]} has {count} experts; supported: at most {MOST_EXPERTS}")
    kind = "bias" if match[3] == "_bias" else "weight"
    for module, rows in _modules(stacked, match[2], outputs).items():
        shape = (len(range(outputs)[rows]), *inputs)
        for number in range(count):
            yield f"{match[1]}.{number}.{module}.{kind}", Part(stack.dtype, shape, partial(stack.rows, number, rows))


def _modules(stacked: StackedExperts, name: str, outputs: int) -> dict[str, slice]:
    """The slice of outputs of each module."""
    if name == stacked.down:
        return {"down_proj": slice(None)}
    if stacked.interleaved:
        return {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    return {"gate_proj": slice(0, outputs // 2), "up_proj": slice(outputs // 2, None)}


def _plain_rows(part: Part, transposed: bool, number: int, rows: slice) -> Bytes:
    one = part.read().reshape(*part.shape, _BYTES[part.dtype])[number]
    return np.ascontiguousarray((one.swapaxes(0, 1) if transposed else one)[rows]).reshape(-1)


def _mxfp4_rows(blocks: Part, scales: Part, number: int, rows: slice) -> Bytes:
    """Rows in GGUF's blocks: the exponent, then bytes of values i and i + 16. In `blocks` a byte has neighbours."""
    packed, exponents = (part.read().reshape(part.shape)[number, rows] for part in (blocks, scales))
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*exponents.shape, _GROUP)
    whole = [exponents[..., None], values[..., :_PACKED] | values[..., _PACKED:] << 4]
    return np.concatenate(whole, axis=-1).reshape(-1)
