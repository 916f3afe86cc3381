"""A model's weights, opened and checked against its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from services.generation.target.arrays import Int64
from services.generation.target.config.config_document import family_of, named_family, read_document
from services.generation.target.config.layer_specs import (
    EMBEDDING,
    HEAD,
    LAYER_EMBEDDING,
    LAYER_NORM,
    LAYER_PROJECTION,
    ModuleSpec,
    layer_specs,
)
from services.generation.target.errors import ArithmeticUnsupported, TargetError, WeightsInvalid, about
from services.generation.target.family import DELTA, NORM, StateRule
from services.generation.target.files.gguf_file import ROPE_FACTORS, ROPE_LONG, ROPE_SHORT, GgufFile, is_gguf
from services.generation.target.files.part_names import sidecar_path
from services.generation.target.files.safetensors import SafetensorsFiles
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.storages import GROUP, PANEL, packed_as, padded

if TYPE_CHECKING:
    from services.generation.target.config.config import TargetConfig  # imports transformers

_log = logging.getLogger(__name__)

_SHOWN = 4  # names in a message
_COMPARED = 1 << 24  # bytes per step
_KEYS_AND_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")
_QUANTISED = {
    ".scales": "MLX", ".biases": "MLX", ".qweight": "GPTQ or AWQ", ".qzeros": "GPTQ or AWQ", ".g_idx": "GPTQ",
    ".weight_scale": "FP8", ".weight_scale_inv": "FP8", ".input_scale": "FP8", ".weight_scale_2": "NVFP4",
    ".weight_packed": "compressed-tensors", ".absmax": "bitsandbytes", ".quant_map": "bitsandbytes",
    ".SCB": "bitsandbytes",
}  # fmt: skip
"""Ends of names of the tensors that belong to quantised weights in safetensors, and the format."""


class Weights(Protocol):
    """Open weights by the names of transformers' model. Thread-safe; a tensor is read when it is used.

    `shape`, `storage` and `tensor` raise KeyError for a name that is not in `names`.
    """

    @property
    def path(self) -> Path:
        """The file, or the directory of several files."""
        ...

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in weights, [out, in] or [size]."""
        ...

    def storage(self, name: str) -> str:
        """The storage, named as in `StoredTensor`. Raises WeightsInvalid for an unknown one."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """A tensor mapped from disk, or copied if its rows are reordered. Raises as `storage` does."""
        ...


def check_headers(path: Path) -> None:
    """Check the headers of a model's files in a fraction of a second, without weights and without transformers.

    Raises:
        ModelNotFound: there is no such file, or no config.json in the directory.
        UnsupportedArchitecture: the family, or an option of it, is not supported.
        ConfigInvalid: config.json is invalid.
        WeightsInvalid: a file is missing, truncated, or of an unsupported kind.
    """
    try:
        if is_gguf(path):
            _ = GgufFile.open(path).families
        else:
            SafetensorsFiles.open(path, family_of(read_document(path)))
    except TargetError as error:
        raise type(error)(about(path, error)) from error


def has_own_head(path: Path) -> bool:
    """Whether the files of a model contain a block for multi-token prediction, by their headers, or there is a sidecar.
    False for files that cannot be read.
    """
    try:
        if is_gguf(path):
            return bool(GgufFile.open(path).own_head()) or sidecar_path(path) is not None
        family = named_family(path)
        return family is not None and family.own_head and bool(SafetensorsFiles.own_head(path, family))
    except TargetError:
        return False


def open_weights(path: Path) -> Weights:
    """The weights of a transformers directory or of a GGUF file, not yet compared with a configuration.

    Raises:
        ModelNotFound: there is no such GGUF file.
        WeightsInvalid: a file is missing, truncated or contradicts itself, or a GGUF file has an unsupported type.
    """
    return GgufFile.open(path) if is_gguf(path) else SafetensorsFiles.open(path, named_family(path))


def stored_bytes(weights: Weights) -> int:
    """Bytes of all matrices, which are not read."""
    shapes = ((weights.storage(name), shape) for name in weights.names() if len(shape := weights.shape(name)) == 2)
    return sum(outputs * LAYOUTS[storage].row_bytes(inputs) for storage, (outputs, inputs) in shapes)


def packed_size(weights: Weights, config: TargetConfig) -> int:
    """Bytes of all matrices as they are packed: iq4_nl takes more than published, and so do modules that are computed
    together and widened to float32.
    """
    parts: list[tuple[str, int, int]] = []  # storage, columns, inputs
    for name in weights.names() & {EMBEDDING, HEAD, LAYER_EMBEDDING, LAYER_PROJECTION}:
        columns, inputs = weights.shape(name)
        parts.append((weights.storage(name), columns, inputs))
    for layer in layer_specs(config):
        halved = {id(group) for group in (layer.gate_up, *(layer.experts.gate_up if layer.experts else ()))}
        for modules in filter(None, layer.groups):
            storages = [weights.storage(f"{layer.prefix}{module.name}.weight") for module in modules]
            runs = _runs(modules, storages, halved=id(modules) in halved)
            parts += [(storage, columns, modules[0].inputs) for storage, columns in runs]
    return sum(
        padded(columns, PANEL) // PANEL * packed_as(storage).panel(padded(inputs, GROUP))
        for storage, columns, inputs in parts
    )


def _runs(modules: Sequence[ModuleSpec], storages: Sequence[str], *, halved: bool) -> list[tuple[str, int]]:
    """The storage and the columns of each matrix that modules become; two halves are padded to whole panels each."""
    columns, alike = sum(module.outputs for module in modules), len(set(storages)) == 1
    if halved:
        columns = 2 * padded(columns // 2, PANEL)
    if alike or halved or not stay_apart(modules, storages):
        return [(storages[0] if alike else "float32", columns)]
    runs = groupby(zip(storages, modules, strict=True), key=itemgetter(0))
    return [(storage, sum(module.outputs for _, module in run)) for storage, run in runs]


def reader(weights: Weights, config: TargetConfig) -> Callable[[str], StoredTensor]:
    """A function that reads tensors with the heads of states in the pass's order."""
    rule = config.rule
    if rule is None:
        return weights.tensor

    def read(name: str) -> StoredTensor:
        tensor, module = weights.tensor(name), ".".join(name.split(".")[3:5])
        order = heads_in_order(rule, module)
        return tensor if order is None else _in_order(tensor, order, columns=module.endswith(".out_proj"))

    return read


def heads_in_order(rule: StateRule, module: str) -> Int64 | None:
    """The order of a module's outputs (of out_proj's inputs) in the pass, or None if it is the file's."""
    if not rule.delta or not module.startswith(f"{DELTA}."):
        return None
    name, keys, share = module.removeprefix(f"{DELTA}."), rule.keys, rule.values // rule.key_heads
    heads = np.arange(rule.value_heads).reshape(rule.key_heads, -1)
    if name == "in_proj_ba":
        return np.arange(2 * heads.size).reshape(rule.key_heads, 2, -1).swapaxes(0, 1).reshape(-1)
    if name == "in_proj_qkvz":
        lines = np.arange(2 * (keys + rule.values)).reshape(rule.key_heads, -1)
        parts = np.split(lines, [rule.key_dim, 2 * rule.key_dim, 2 * rule.key_dim + share], axis=1)
        return np.concatenate([part.reshape(-1) for part in parts])
    if not rule.tiled or rule.converted or name == "norm":
        return None
    tiled = heads.T.reshape(-1)
    values = (tiled[:, None] * rule.value_dim + np.arange(rule.value_dim)).reshape(-1)
    if name in ("in_proj_qkv", "conv1d"):
        return np.concatenate([np.arange(2 * keys), 2 * keys + values])
    return values if name in ("in_proj_z", "out_proj") else tiled


def _in_order(tensor: StoredTensor, order: Int64, *, columns: bool) -> StoredTensor:
    """Reorder the rows of a matrix, the elements of a vector, or, of plain numbers, columns."""
    if len(tensor.shape) == 2 and not columns:
        return replace(tensor, data=tensor.data[order])
    numbers = tensor.data.reshape(*tensor.shape, -1)
    return replace(tensor, data=np.take(numbers, order, axis=-2).reshape(tensor.data.shape))


def expected_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors that the canonical pass reads; linear weights are [out, in]."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), NORM: (hidden,)}
    if size := config.layer_inputs:
        shapes |= {
            LAYER_EMBEDDING: (config.vocab_size, config.layers * size),
            LAYER_PROJECTION: (config.layers * size, hidden),
            LAYER_NORM: (size,),
        }
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in layer_specs(config):
        shapes |= layer.shapes(hidden)
    return shapes


def checked_weights(path: Path, config: TargetConfig) -> Weights:
    """Open and check the weights at `path`. Raises as `open_weights` and `check_weights` do."""
    weights = open_weights(path)
    check_weights(weights, config)
    return weights


def check_weights(weights: Weights, config: TargetConfig) -> None:
    """Compare names, shapes and storages with the configuration; no weight is read.

    Raises:
        WeightsInvalid: a tensor is missing, unknown, or of another shape or storage, or so is a tied head.
    """
    expected, found = expected_shapes(config), weights.names()
    if HEAD in found:  # even if it is tied to the embeddings: see `output_name`
        expected[HEAD] = (config.vocab_size, config.hidden_size)
    readers = tuple(f"{layer.prefix}self_attn." for layer in layer_specs(config) if layer.source is not None)
    _refuse_quantised(weights.path, found)
    missing = sorted(expected.keys() - found)
    if missing:
        raise WeightsInvalid(f"{weights.path}: {listing(missing)} missing; the configuration needs it")
    unknown = sorted(name for name in found - expected.keys() if not _left_out(name, readers, weights.path))
    if unknown:
        raise WeightsInvalid(
            f"{weights.path}: {listing(unknown)} not known to this architecture; does the configuration fit?"
        )
    for name, shape in expected.items():
        if weights.shape(name) != shape:
            raise WeightsInvalid(
                f"{weights.path}: {name} has shape {list(weights.shape(name))}, by the configuration {list(shape)}"
            )
        weights.storage(name)  # raises if it is not supported


def _refuse_quantised(path: Path, names: Iterable[str]) -> None:
    """Raise WeightsInvalid for quantised weights that config.json does not announce."""
    for name in sorted(names) if not is_gguf(path) else ():
        if kind := next((kind for end, kind in _QUANTISED.items() if name.endswith(end)), ""):
            raise WeightsInvalid(
                f"{path}: {name} belongs to quantised weights, of {kind}, which are not supported; supported in a "
                "folder: plain numbers, and gpt-oss's MXFP4: take the original model, or a GGUF file of it"
            )


def _left_out(name: str, readers: tuple[str, ...], path: Path) -> bool:
    """Whether a tensor is ignored: frequencies, which follow from the configuration, a GGUF file's divisors of them,
    which are read with it, and keys and values of attention modules (`readers`) that share another layer's.
    """
    if name.startswith(readers) and name.split(".")[-2] in _KEYS_AND_VALUES:
        return True
    if name in (ROPE_FACTORS, ROPE_LONG, ROPE_SHORT):
        return is_gguf(path)
    return name.endswith(".rotary_emb.inv_freq")


def output_name(weights: Weights, config: TargetConfig) -> str:
    """The name of the matrix for logits: the head, or the embeddings if the configuration ties the two.

    If a tied checkpoint has a head whose bytes differ from the embeddings, the head is read, as in transformers 5: a
    conversion or a fine-tune can leave a wrong `tie_word_embeddings`.
    """
    if not config.tied_embeddings:
        return HEAD
    if HEAD not in weights.names() or _same(weights.tensor(EMBEDDING), weights.tensor(HEAD)):
        return EMBEDDING
    _log.warning(
        "%s: tie_word_embeddings is true, but %s differs from %s; using %s, as transformers does",
        weights.path, HEAD, EMBEDDING, HEAD,
    )  # fmt: skip
    return HEAD


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors have the same storage, shape and bytes."""
    if (one.storage, one.shape) != (other.storage, other.shape):
        return False
    first, second = one.data.reshape(-1), other.data.reshape(-1)
    starts = range(0, len(first), _COMPARED)
    return all(np.array_equal(first[at : at + _COMPARED], second[at : at + _COMPARED]) for at in starts)


def listing(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def usual_arithmetic(config: TargetConfig, weights: Weights) -> str:
    """The default arithmetic: int8 for quantised weights that allow it, else float32."""
    try:
        check_int8(config, weights)
    except ArithmeticUnsupported:
        return "float32"
    return "int8"


def check_int8(config: TargetConfig, weights: Weights) -> None:
    """Raise ArithmeticUnsupported if no layer is quantised, or if modules that are computed together would have to be
    widened to float32.
    """
    quantised = False
    for layer in layer_specs(config):
        for modules in layer.groups:
            storages = [weights.storage(f"{layer.prefix}{module.name}.weight") for module in modules]
            quantised = quantised or any(packed_as(storage).quantised for storage in storages)
            if len(set(storages)) > 1 and (layer.alternates(modules) or not stay_apart(modules, storages)):
                raise ArithmeticUnsupported(
                    f"arithmetic: int8 needs {modules[0].name} and its neighbours in one storage, but layer "
                    f"{layer.prefix.rstrip('.')} has {', '.join(storages)}; use arithmetic float32"
                )
    if not quantised:
        raise ArithmeticUnsupported(
            f"arithmetic: int8 needs quantised weights, but {weights.path.name} has plain numbers; use a GGUF file "
            "of the model (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q4_K, Q5_K, Q6_K), or arithmetic float32"
        )


def stay_apart(modules: Sequence[ModuleSpec], storages: Sequence[str]) -> bool:
    """Whether modules become one matrix for each run of equal storages: all but the last must be whole panels."""
    ends = accumulate(module.outputs for module in modules)
    return not any(end % PANEL for end, (one, other) in zip(ends, pairwise(storages), strict=False) if one != other)
