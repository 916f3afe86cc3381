"""Export of a bundle: the selection of its entries, and the proofs that tie them to one signed checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ledger.bundle import layout
from ledger.bundle.layout import BundleFile, BundleManifest, ContentLine, OlderTree, Room, Span
from ledger.documents.audit import Verdict
from ledger.documents.content import Content
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.erasure import Expiry, Retention
from ledger.documents.halt import Halt, Resume
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import Document, read_document
from ledger.encoding.text_forms import encode_base64
from ledger.errors import BundleTooLarge, ContentDamaged, ProofError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import HashReader, consistency_proof, tree_root
from ledger.tree.multiproof import multi_proof
from ledger.tree.tile import TileHashes, TileReader

_log = logging.getLogger(__name__)

_ALWAYS = ("key", "halt", "resume", "head_publication", "head_withdrawal", "retention", "expiry", "engine_profile")

_PACKING_BYTES = 1024
"""The most bytes that a tar adds to a file: its header and the padding of its last block."""


class BundleSource(TileReader, Protocol):
    """The log that an export reads, such as `store.EntryStore`. Entries up to the checkpoint's size must be durable."""

    def entries(self, start: int, limit: int) -> Sequence[bytes]: ...
    def entry(self, index: int) -> bytes: ...
    def entries_of(self, kinds: Iterable[str]) -> Sequence[tuple[int, bytes]]: ...
    def about(self, start: int, end: int) -> Iterable[int]: ...
    def content(self, receipt_index: int) -> Content | None: ...


@dataclass(frozen=True, slots=True)
class Export:
    """The contents of a bundle to be made: the entries in [start, end) and the receipts at `indexes`.

    `checkpoint` is the signed note (with its cosignatures) of all proofs. `earlier` has older signed notes of the log,
    `sizes` the sizes of older trees without a note whose roots are needed. `with_content` adds content that is
    neither erased nor damaged. With `tenant`, other tenants' content, retention policies and erasures stay out.
    `draft_heads` are manifests by the hex of their digest. `policy` and `keys` are the exporter's; readers can compare
    them with their own.
    """

    checkpoint: bytes
    start: int
    end: int
    exported_at: str
    indexes: tuple[int, ...] = ()
    earlier: tuple[bytes, ...] = ()
    sizes: tuple[int, ...] = ()
    with_content: bool = False
    tenant: str | None = None
    draft_heads: Mapping[str, bytes] = field(default_factory=dict)
    policy: bytes | None = None
    keys: Mapping[str, tuple[PublicKey, ...]] = field(default_factory=dict)


def export_bundle(source: BundleSource, wanted: Export) -> Iterator[BundleFile]:
    """The files of a bundle, one at a time. Raises ProofError for a range or index beyond the checkpoint, NotFound,
    BundleTooLarge for what no verifier would read. At most one file of entries is in memory.
    """
    room = Room(None)
    for number, file in enumerate(_files(source, wanted)):
        if number >= layout.MAX_FILES:
            raise BundleTooLarge("bundle", f"has more than {layout.MAX_FILES} files: {layout.SMALLER}")
        if len(file.data) > (most := layout.bound_of(file.path)):
            raise BundleTooLarge(file.path, f"measures {len(file.data)} bytes, at most {most}: {layout.SMALLER}")
        room.take_file(len(file.data) + _PACKING_BYTES)
        yield file


def _files(source: BundleSource, wanted: Export) -> Iterator[BundleFile]:
    tree_head = Checkpoint.from_text(Note.from_bytes(wanted.checkpoint).text)
    if not 0 <= wanted.start <= wanted.end <= tree_head.size:
        raise ProofError(f"[{wanted.start}, {wanted.end}) is not in a tree of {tree_head.size} entries")
    indexes = _indexes(source, wanted, tree_head.size)
    hashes = TileHashes(source)
    manifest = BundleManifest(
        tree_head.origin, tree_head.size, Span(wanted.start, wanted.end), len(indexes), wanted.exported_at
    )
    yield BundleFile(layout.MANIFEST, manifest.to_bytes())
    yield BundleFile(layout.CHECKPOINT, wanted.checkpoint)
    yield BundleFile(
        layout.PROOF, _lines(encode_base64(node).encode() for node in multi_proof(indexes, tree_head.size, hashes))
    )
    trees = _trees(wanted, tree_head, hashes)
    if trees:
        yield BundleFile(layout.TREES, _lines(trees))
    yield from _exporter_files(wanted)
    yield from _entries(source, indexes, wanted)


def _indexes(source: BundleSource, wanted: Export, size: int) -> Sequence[int]:
    """The indexes of all entries of the bundle, rising."""
    if (wanted.start, wanted.end) == (0, size):
        return range(size)
    chosen = {*range(wanted.start, wanted.end), *wanted.indexes}
    receipts = [(wanted.start, wanted.end), *((index, index + 1) for index in wanted.indexes)]
    for index, data in source.entries_of(_ALWAYS):
        document = read_document(Entry.from_bytes(data).envelope)
        if _concerns_others(document, wanted.tenant):
            continue
        chosen.add(index)
        if isinstance(document, Halt):
            verdict = read_document(Entry.from_bytes(source.entry(document.verdict_index)).envelope)
            if isinstance(verdict, Verdict):
                chosen.update((document.verdict_index, verdict.receipt_index))
                if wanted.tenant is None:  # else the receipt may be another's, as are later entries about it
                    receipts.append((verdict.receipt_index, verdict.receipt_index + 1))
    for start, end in receipts:
        chosen.update(source.about(start, end))
    return sorted(index for index in chosen if index < size)


def _concerns_others(document: Document, tenant: str | None) -> bool:
    """Whether an entry may name tenants other than the bundle's, and so stays out of it."""
    match document:
        case Retention():
            return tenant is not None and document.tenant not in (None, tenant)
        case Expiry():  # an expiry for all names the tenants with their own policy
            return tenant is not None and document.tenant != tenant
        case Halt() | Resume() | KeyEntry() | DraftHeadPublication() | DraftHeadWithdrawal() | EngineProfile():
            return False
        case _:
            return tenant is not None


def _trees(wanted: Export, tree_head: Checkpoint, hashes: HashReader) -> list[bytes]:
    notes = {Checkpoint.from_text(Note.from_bytes(note).text).size: note for note in wanted.earlier}
    sizes = sorted(size for size in {*notes, *wanted.sizes} if 0 < size < tree_head.size)
    return [
        OlderTree(
            size,
            tree_root(size, hashes),
            tuple(consistency_proof(size, tree_head.size, hashes)),
            notes[size].decode() if size in notes else None,
        ).to_bytes()
        for size in sizes
    ]


def _exporter_files(wanted: Export) -> Iterator[BundleFile]:
    if wanted.policy is not None:
        yield BundleFile(layout.POLICY, wanted.policy)
    for role, keys in wanted.keys.items():
        for key in keys:
            yield BundleFile(f"keys/{role}-{key.key_id.removeprefix('ed25519:')[:16]}.pub", key.to_pem())
    for digest, manifest in wanted.draft_heads.items():
        yield BundleFile(f"heads/{digest}.json", manifest)


def _entries(source: BundleSource, indexes: Sequence[int], wanted: Export) -> Iterator[BundleFile]:
    at = 0
    while at < len(indexes):
        chosen = indexes[at : at + layout.ENTRIES_PER_FILE]
        path = f"content/{chosen[0]:012d}.jsonl"
        lines, count = _contents(source, chosen, wanted, layout.bound_of(path)) if wanted.with_content else ([], None)
        chosen = chosen[:count]
        yield BundleFile(f"entries/{chosen[0]:012d}.jsonl", _lines(_read(source, chosen)))
        if lines:
            yield BundleFile(path, _lines(lines))
        at += len(chosen)


def _contents(source: BundleSource, chosen: Sequence[int], wanted: Export, most: int) -> tuple[list[bytes], int]:
    """The lines of a file of content of at most so many bytes, and the number of first entries that they cover."""
    lines, size = list[bytes](), 0
    for place, index in enumerate(chosen):
        content = _content(source, index) if wanted.tenant is None or index in wanted.indexes else None
        if content is None:
            continue
        line = ContentLine.of(index, content).to_bytes()
        size += len(line) + 1
        if size > most and lines:
            return lines, place
        if size > most:
            raise BundleTooLarge(
                f"entry {index}", f"has {size} bytes of content; a bundle allows {most}: export without"
            )
        lines.append(line)
    return lines, len(chosen)


def _content(source: BundleSource, index: int) -> Content | None:
    try:
        return source.content(index)
    except ContentDamaged as error:
        _log.warning("exporting a bundle without a content: %s", error)
        return None


def _read(source: BundleSource, indexes: Sequence[int]) -> Sequence[bytes]:
    if indexes[-1] - indexes[0] == len(indexes) - 1:
        return source.entries(indexes[0], len(indexes))
    return [source.entry(index) for index in indexes]


def _lines(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
