"""Is a head what its manifest says, and can it draft for its base? Reads headers and one small tensor, runs nothing."""

from __future__ import annotations

import functools
import sys
from array import array

from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.documents.named_file import NamedFile
from ledger.encoding.canonical import parse_json
from ledger.encoding.fields import Fields
from ledger.errors import FormatError
from services.registry.blob_references import MAX_BASE_BYTES, check_whole, read_base
from services.registry.blobs import BlobStore
from services.registry.errors import BadHead, BaseMismatch, BaseUnknown
from services.registry.head_config import MAX_CONFIG_BYTES, HeadConfig
from services.registry.safetensors_header import Tensor, read_header
from services.runtime.errors import NotFound

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
    name = manifest.config.name
    if manifest.config.size > MAX_CONFIG_BYTES:
        raise BadHead(name, f"has {manifest.config.size:,} bytes, at most {MAX_CONFIG_BYTES:,} are read")
    try:
        return HeadConfig.from_bytes(blobs.read(manifest.config.digest, MAX_CONFIG_BYTES))
    except FormatError as error:
        raise BadHead(name, str(error)) from error


def _check_manifest(manifest: DraftHeadManifest, config: HeadConfig) -> None:
    for name in ("hidden_size", "feature_layers", "vocab_size", "draft_vocab_size"):
        said, is_ = getattr(manifest, name), getattr(config, name)
        if said != is_:
            raise BadHead(manifest.config.name, f"{name} is {_shown(is_)}; the manifest says {_shown(said)}")


def check_fits(config: HeadConfig, base_config: bytes) -> None:
    """Whether a head can draft for a base with this config.json. Raises BaseMismatch, FormatError."""
    fields = Fields(parse_json(base_config, "config.json"))
    multimodal = fields.has("text_config")
    fields = fields.part("text_config") if multimodal else fields
    hidden_size, layers = (fields.integer(name, 1) for name in ("hidden_size", "num_hidden_layers"))
    unsaid = multimodal and not fields.has("vocab_size")  # some leave it to transformers
    vocab_size = config.vocab_size if unsaid else fields.integer("vocab_size", 1)
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
    for part in manifest.weights:
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
