"""The check of a pushed head: is it what its manifest says, and can it draft for its base?

It reads config.json (kolm.eagle3.v1, kolm.block.v1), safetensors headers and one small tensor; nothing is run, mapped
or converted.
A safetensors header is 8 bytes of little-endian length and a JSON object; tensors lie without holes or overlaps.
"""

from __future__ import annotations

import functools
import math
import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta, field

from ledger.documents.manifests import BaseManifest, DraftHeadManifest, NamedFile
from ledger.encoding.canonical import parse_json
from ledger.encoding.document import Count, Members, Part, Positive, one_of
from ledger.errors import FormatError
from services.registry.blobs import BlobStore
from services.registry.errors import BadHead, BaseMismatch, BaseUnknown, BlobMissing
from services.runtime.errors import NotFound

MAX_BASE_BYTES = 16 * 1024 * 1024
"""Bytes of a base's manifest or its config.json."""


def read_base(base_cid: str, blobs: BlobStore) -> BaseManifest:
    """The manifest of a base, verified. Raises NotFound, FormatError, DataLoss."""
    return BaseManifest.from_bytes(blobs.read(base_digest(base_cid), MAX_BASE_BYTES))


def base_digest(base_cid: str) -> str:
    """The digest of the blob that holds the base's manifest."""
    return base_cid.removeprefix("cidv1:")


def check_whole(manifest: DraftHeadManifest, blobs: BlobStore) -> None:
    """Returns where every blob is there that the head refers to. Raises BlobMissing, BaseUnknown."""
    missing = [part.name for part in manifest.files if blobs.size(part.digest) is None]
    if missing:
        raise BlobMissing(missing)
    try:
        config = read_base(manifest.subject, blobs).model_config
    except (NotFound, FormatError) as error:
        raise BaseUnknown(manifest.subject, str(error)) from error
    if blobs.size(config.digest) is None:
        raise BaseUnknown(manifest.subject, "its config.json is missing")


MAX_HEADER_BYTES = 16 * 1024 * 1024
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_MOST_DIMENSIONS = 8

ReadRange = Callable[[int, int], bytes]
"""The bytes of a file from a start, so many."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: where its bytes are in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_header(read: ReadRange, file_size: int) -> dict[str, Tensor]:
    """The tensors of a file of `file_size` bytes, by name. Raises FormatError for anything but a whole, tight file."""
    if file_size < 8:
        raise FormatError("header", f"is missing: the file has {file_size} bytes, safetensors begin with 8")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(MAX_HEADER_BYTES, file_size - 8):
        raise FormatError("header", f"claims {length:,} bytes of a file of {file_size:,}: truncated, or no safetensors")
    document = parse_json(read(8, length), "header")
    if not isinstance(document, dict):
        raise FormatError("header", "expected a JSON object")
    document.pop("__metadata__", None)
    tensors = {name: _tensor(name, value, 8 + length) for name, value in document.items()}
    _check_tight(tensors, 8 + length, file_size)
    return tensors


class _Header(Part, frozen=True):
    dtype: Annotated[str, one_of(_BYTES)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=_MOST_DIMENSIONS)]
    data_offsets: tuple[Count, Count]


def _tensor(name: str, value: object, base: int) -> Tensor:
    header = _Header.from_document(value, name)
    size = math.prod(header.shape) * _BYTES[header.dtype]
    start, end = header.data_offsets
    if end - start != size:
        expected = f"expected two numbers {size} apart for {header.dtype} {list(header.shape)}"
        raise FormatError(f"{name}.data_offsets", expected)
    return Tensor(header.dtype, header.shape, base + start, size)


def _check_tight(tensors: dict[str, Tensor], start: int, file_size: int) -> None:
    """Every byte of the file belongs to exactly one tensor: none is hidden, none is missing."""
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != position:
            raise FormatError(f"{name}.data_offsets", "leaves a hole, or overlaps another tensor")
        position += tensor.size
    if position != file_size:
        raise FormatError("data", f"ends at byte {position:,}, the file has {file_size:,}: truncated, or too long")


MAX_CONFIG_BYTES = 1024 * 1024

_LARGEST = 2**24  # of any size in a head; keeps products of two of them exact
_MOST_LAYERS = 64


_Size = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Shapes = dict[str, tuple[int, ...]]


class HeadConfig(Members, frozen=True):
    """The sizes and choices that decide about names and shapes, as heads of all kinds have them. Sizes in elements."""

    kind: ClassVar[str] = ""
    output_bias: ClassVar[bool] = False
    mlp_bias: ClassVar[bool] = False

    layers: Annotated[int, Meta(ge=1, le=_MOST_LAYERS)] = field(name="num_hidden_layers")
    hidden_size: _Size
    target_hidden_size: _Size
    intermediate_size: _Size
    heads: _Size = field(name="num_attention_heads")
    kv_heads: _Size = field(name="num_key_value_heads")
    head_dim: _Size
    vocab_size: _Size
    draft_vocab_size: _Size
    feature_layers: tuple[Annotated[int, Meta(ge=0, le=_LARGEST)], ...]
    attention_bias: bool
    own_embeddings: bool

    @classmethod
    def from_bytes(cls, data: bytes) -> HeadConfig:
        """Raises FormatError naming the member that is wrong, `layout` where it is another layout than kolm's."""
        document = parse_json(data, "config.json")
        if not isinstance(document, dict):
            raise FormatError("config.json", "expected a JSON object")
        layout = document.get("layout")
        if not isinstance(layout, str) or layout not in LAYOUTS:
            known = " or ".join(LAYOUTS)
            raise FormatError("layout", f"expected {known}; `kolm heads push` writes it from other layouts")
        return LAYOUTS[layout].from_document(document)

    def shapes(self) -> _Shapes:
        """Name and shape of every float tensor; weights are [out, in]."""
        shapes: _Shapes = {
            "fc.weight": (self.hidden_size, len(self.feature_layers) * self.target_hidden_size),
            "norm.weight": (self.hidden_size,),
        }
        if self.own_embeddings:
            shapes["embed_tokens.weight"] = (self.vocab_size, self.hidden_size)
        shapes |= self._own()
        for layer in range(self.layers):
            shapes |= self._layer(layer)
        return shapes

    def _own(self) -> _Shapes:
        """Tensors of the kind alone."""
        return {}

    def _layer(self, layer: int) -> _Shapes:
        return self._shapes_of(f"layers.{layer}.", self.hidden_size, head_norms=True)

    def _shapes_of(self, prefix: str, reads: int, *, head_norms: bool) -> _Shapes:
        """Tensors of a layer whose attention reads so many values."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes: _Shapes = {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
        if head_norms:
            shapes |= {f"{prefix}self_attn.{norm}.weight": (self.head_dim,) for norm in ("q_norm", "k_norm")}
        linears = {
            "self_attn.q_proj": (queries, reads, self.attention_bias),
            "self_attn.k_proj": (keys, reads, self.attention_bias),
            "self_attn.v_proj": (keys, reads, self.attention_bias),
            "self_attn.o_proj": (hidden, queries, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        return shapes


class Eagle3Config(HeadConfig, frozen=True):
    """The first layer reads embedding and feature side by side, and is called after SafeAILab's."""

    kind: ClassVar[str] = "eagle3"

    output_bias: bool  # type: ignore[misc]
    mlp_bias: bool  # type: ignore[misc]
    head_norms: bool
    norm_before_fc: bool
    fc_norm: bool

    def _own(self) -> _Shapes:
        features = len(self.feature_layers)
        shapes: _Shapes = {"lm_head.weight": (self.draft_vocab_size, self.hidden_size)}
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (features * self.target_hidden_size,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden_size,) for i in range(features)}
        return shapes

    def _layer(self, layer: int) -> _Shapes:
        if layer:
            return self._shapes_of(f"layers.{layer}.", self.hidden_size, head_norms=self.head_norms)
        first = self._shapes_of("midlayer.", 2 * self.hidden_size, head_norms=self.head_norms)
        return {**first, "midlayer.hidden_norm.weight": (self.hidden_size,)}


class BlockConfig(HeadConfig, frozen=True):
    """Layers are Qwen3's; a Markov and a confidence head may stand beside them."""

    kind: ClassVar[str] = "block"

    own_output: bool
    markov_rank: Annotated[int, Meta(ge=0, le=_LARGEST)]
    confidence: bool = field(name="confidence_head")
    confidence_reads_token: bool = field(name="confidence_head_with_markov")

    @property
    def output_bias(self) -> bool:  # type: ignore[override]
        return self.attention_bias

    def _own(self) -> _Shapes:
        hidden, rank = self.hidden_size, self.markov_rank
        shapes: _Shapes = {"hidden_norm.weight": (hidden,)}
        if self.own_output:
            shapes["lm_head.weight"] = (self.draft_vocab_size, hidden)
        if rank:
            shapes["markov_head.markov_w1.weight"] = (self.vocab_size, rank)
            shapes["markov_head.markov_w2.weight"] = (self.draft_vocab_size, rank)
        if self.confidence:
            shapes["confidence_head.proj.weight"] = (1, hidden + (rank if self.confidence_reads_token else 0))
            shapes["confidence_head.proj.bias"] = (1,)
        return shapes


LAYOUTS: Mapping[str, type[HeadConfig]] = {"kolm.eagle3.v1": Eagle3Config, "kolm.block.v1": BlockConfig}
"""Kolm's layouts of config.json."""


_FLOATS = ("F32", "BF16", "F16")

_Placed = tuple[NamedFile, Tensor]


def check_head(manifest: DraftHeadManifest, blobs: BlobStore) -> None:
    """Returns for a head that is whole, in kolm's layout, and made for a base of this description.

    Raises BlobMissing, BaseUnknown, BadHead, BaseMismatch.
    """
    check_whole(manifest, blobs)
    _check_sizes(manifest, blobs)
    config = _config(manifest, blobs)
    _check_manifest(manifest, config)
    _check_base(config, manifest.subject, blobs)
    tensors = _tensors(manifest, blobs)
    _check_tensors(config, tensors)
    _check_d2t(config, tensors, blobs)


def _check_sizes(manifest: DraftHeadManifest, blobs: BlobStore) -> None:
    for part in manifest.files:
        size = blobs.size(part.digest)
        if size != part.size:
            raise BadHead(part.name, f"has {size or 0:,} bytes; the manifest says {part.size:,}")


def _config(manifest: DraftHeadManifest, blobs: BlobStore) -> HeadConfig:
    name = manifest.config.file.name
    if manifest.config.file.size > MAX_CONFIG_BYTES:
        raise BadHead(name, f"has {manifest.config.file.size:,} bytes, at most {MAX_CONFIG_BYTES:,} are read")
    try:
        return HeadConfig.from_bytes(blobs.read(manifest.config.file.digest, MAX_CONFIG_BYTES))
    except FormatError as error:
        raise BadHead(name, str(error)) from error


def _check_manifest(manifest: DraftHeadManifest, config: HeadConfig) -> None:
    for name in ("kind", "hidden_size", "feature_layers", "vocab_size", "draft_vocab_size"):
        said, is_ = getattr(manifest, name), getattr(config, name)
        if said != is_:
            raise BadHead(manifest.config.file.name, f"{name} is {_shown(is_)}; the manifest says {_shown(said)}")


class _BaseSizes(Members, frozen=True):
    hidden_size: Positive
    num_hidden_layers: Positive
    vocab_size: Positive


class _TextSizes(Members, frozen=True):
    hidden_size: Positive
    num_hidden_layers: Positive
    vocab_size: Positive | None = None


def check_fits(config: HeadConfig, base_config: bytes) -> None:
    """Whether a head can draft for a base with this config.json. Raises BaseMismatch, FormatError."""
    document = parse_json(base_config, "config.json")
    if isinstance(document, dict) and "text_config" in document:  # some leave its vocab_size to transformers
        base: _BaseSizes | _TextSizes = _TextSizes.from_document(document["text_config"], "text_config")
    else:
        base = _BaseSizes.from_document(document)
    hidden_size, layers, vocab_size = base.hidden_size, base.num_hidden_layers, base.vocab_size or config.vocab_size
    if config.target_hidden_size != hidden_size:
        raise BaseMismatch(f"reads features of {config.target_hidden_size}; the base's hidden size is {hidden_size}")
    if config.vocab_size != vocab_size:
        raise BaseMismatch(f"knows {config.vocab_size} tokens; the base has {vocab_size}")
    if not config.own_embeddings and config.hidden_size != hidden_size:
        raise BaseMismatch(f"is {config.hidden_size} wide without embeddings of its own; the base's are {hidden_size}")
    beyond = [layer for layer in config.feature_layers if layer > layers]
    if beyond:
        raise BaseMismatch(f"reads the features of layers {_shown(tuple(beyond))}; the base has {layers}")


def _check_base(config: HeadConfig, base_cid: str, blobs: BlobStore) -> None:
    """Against the config.json that the base's own identifier vouches for."""
    try:
        base = read_base(base_cid, blobs)
        check_fits(config, blobs.read(base.model_config.digest, MAX_BASE_BYTES))
    except (NotFound, FormatError) as error:
        raise BaseUnknown(base_cid, str(error)) from error


def _tensors(manifest: DraftHeadManifest, blobs: BlobStore) -> dict[str, _Placed]:
    found: dict[str, _Placed] = {}
    for part in manifest.weights.files:
        try:
            tensors = read_header(functools.partial(blobs.range, part.digest), part.size)
        except FormatError as error:
            raise BadHead(part.name, f"is no whole safetensors file: {error}") from error
        twice = sorted(found.keys() & tensors.keys())
        if twice:
            raise BadHead(part.name, f"has {twice[0]}, which another file of the head has too")
        found |= {name: (part, tensor) for name, tensor in tensors.items()}
    return found


def _check_tensors(config: HeadConfig, tensors: dict[str, _Placed]) -> None:
    expected = {name: (shape, _FLOATS) for name, shape in config.shapes().items()}
    indexes = {"d2t": ((config.draft_vocab_size,), ("I64",)), "t2d": ((config.vocab_size,), ("BOOL",))}
    required = expected.keys() | ({"d2t"} if config.draft_vocab_size < config.vocab_size else set())
    missing = sorted(required - tensors.keys())
    unknown = sorted(tensors.keys() - expected.keys() - indexes.keys())
    if missing or unknown:
        raise BadHead("weights", f"missing {_some(missing)}, unknown {_some(unknown)}; does config.json fit them?")
    for name, (part, tensor) in tensors.items():
        shape, dtypes = (expected | indexes)[name]
        if tensor.dtype not in dtypes:
            raise BadHead(part.name, f"{name} has dtype {tensor.dtype}; expected {' or '.join(dtypes)}")
        if tensor.shape != shape:
            raise BadHead(part.name, f"{name} has shape {list(tensor.shape)}; config.json makes it {list(shape)}")


def _check_d2t(config: HeadConfig, tensors: dict[str, _Placed], blobs: BlobStore) -> None:
    if "d2t" not in tensors:
        return
    part, tensor = tensors["d2t"]
    offsets = array("q", blobs.range(part.digest, tensor.start, tensor.size))
    if sys.byteorder == "big":
        offsets.byteswap()
    ids = [draft + offset for draft, offset in enumerate(offsets)]
    bad = next((draft for draft, token in enumerate(ids) if not 0 <= token < config.vocab_size), None)
    if bad is not None:
        raise BadHead(part.name, f"d2t leads draft token {bad} to {ids[bad]}; expected 0 to {config.vocab_size - 1}")
    if len(set(ids)) != len(ids):
        raise BadHead(part.name, "d2t leads two draft tokens to the same token")


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}" if names else "nothing"
