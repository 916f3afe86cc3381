"""Opening a ledger: the same path after a clean stop, a crash and for an empty file.

Trusts only signed rows of the database. The guard must not be ahead of it. The recorded checkpoint must verify and must
be the root of the tiles; the entries of its last tile and all entries after it are read, hashed and checked as they
were at admission; entries that no checkpoint covers are then signed. The cost does not grow with the log. `verify_log`
checks every entry, `fsck` every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from ledger.documents.halt import Halt, HaltState, Resume
from ledger.documents.key_history import KeyHistory
from ledger.documents.reference_rules import follow
from ledger.documents.signed_document import read_document
from ledger.errors import ChainError, FormatError, LogOfAnotherKey, NotFound, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import Note, check_key_name, note_key_id
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.continuity import Guard, check_not_rolled_back
from ledger.log.store import EntryStore, entries_from
from ledger.log.tree_head import TreeHead
from ledger.log.writer import LogState, LogWriter, OnWritten, ignore_times
from ledger.tree.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash, tree_root
from ledger.tree.tile import TILE_WIDTH, TileEdge, TileHashes


def recover(
    store: EntryStore,
    key: Signer,
    trusted: TrustedKeys,
    origin: str,
    guard: Guard,
    on_written: OnWritten = ignore_times,
    *,
    signs_tail: bool = True,
) -> LogWriter:
    """A writer that continues the log. `origin` names the log in its checkpoints and must never change. `trusted` has
    the replaced keys too: they may have signed the recorded checkpoint and entries that no checkpoint covers. Without
    `signs_tail`, the writer signs no head before its first entry, which has to make `key` the log's key.

    Raises RolledBack if the guard has seen more entries than the database holds, ChainError if the database contradicts
    a signed checkpoint, the guard or itself (do not serve it: run the verification), FormatError or SignatureError for
    a checkpoint of another log or key, StoreError.
    """
    check_key_name(origin, "origin")
    if key.role != "log":
        raise FormatError("role", f"checkpoints are signed by a key of role log, not {key.role}")
    size = store.size()
    guarded = guard.read(origin)
    try:
        recorded = _recorded_head(store, (key.public, *trusted.keys("log")), origin)
    except SignatureError:  # an old backup, whose key has been replaced since
        check_not_rolled_back(guarded, size, None, TileHashes(store))
        raise
    signed = None if recorded is None else recorded[0]
    check_not_rolled_back(guarded, size, signed, TileHashes(store))
    covered = 0 if signed is None else signed.size
    if covered > size:
        raise ChainError(size, f"is missing: the log signed {covered} entries. Was an old copy restored?")
    state = _state(store, trusted, size, covered)
    with _blame(covered - 1):
        if recorded is not None:  # a replaced key may have signed it before its replacement
            open_checkpoint(recorded[1], (key.public, *state.keys.at(max(covered - 1, 0)).keys("log")), origin)
        if signed is not None and tree_root(covered, TileHashes(store)) != signed.root:
            raise ChainError(covered - 1, "the tiles up to here do not have the root of the recorded checkpoint")
    head = Checkpoint(origin, size, state.frontier.root())
    if guarded != head:
        guard.compare_and_swap(guarded, head)
    if recorded is not None and covered == size:
        note = recorded[1]
    else:
        note = _sign(store, key, head) if signs_tail else b""
    return LogWriter(store, key, state, TreeHead(head, note, state.halts), guard, on_written)


def _recorded_head(store: EntryStore, keys: tuple[PublicKey, ...], origin: str) -> tuple[Checkpoint, bytes] | None:
    data = store.latest_checkpoint()
    if data is None:
        return None
    try:
        return open_checkpoint(data, keys, origin), data
    except SignatureError:
        signers = [f"{line.name}+{line.key_id.hex()}" for line in Note.from_bytes(data).signatures]
        expected = list(dict.fromkeys(f"{origin}+{note_key_id(origin, key).hex()}" for key in keys))
        if set(signers).isdisjoint(expected):
            raise LogOfAnotherKey(signers, expected) from None
        raise


def _sign(store: EntryStore, key: Signer, checkpoint: Checkpoint) -> bytes:
    note = sign_checkpoint(checkpoint, key)
    store.record_checkpoint(checkpoint.size, note)
    return note


def _state(store: EntryStore, trusted: TrustedKeys, size: int, covered: int) -> LogState:
    hashes = TileHashes(store)
    halts, keys = _check_tail(store, hashes, trusted, size, covered)
    with _blame(size - 1):
        return LogState(Frontier.at(size, hashes), TileEdge.at(size, store), halts, keys)


def _check_tail(
    store: EntryStore, hashes: TileHashes, trusted: TrustedKeys, size: int, covered: int
) -> tuple[HaltState, KeyHistory]:
    """Check the entries of the checkpoint's last tile and all after it; returns the halts and the keys."""
    index = max(covered - 1, 0) // TILE_WIDTH * TILE_WIDTH
    halts, keys = _fold_rare(store, KeyHistory.of(trusted), covered)
    for data in islice(entries_from(store, index), size - index):
        with _blame(index):
            entry = _check_place(index, data, hashes)
            if index >= covered:
                document = keys.open(index, entry.envelope)
                halts, keys = follow(index, document, halts, store), keys.after(index, document)
        index += 1
    if index < size:
        raise ChainError(index, "is missing")
    return halts, keys


def _check_place(index: int, data: bytes, hashes: TileHashes) -> Entry:
    if leaf_hash(data) != hashes.subtree(0, index):
        raise ChainError(index, "its bytes do not have the hash in the tree")
    entry = Entry.from_bytes(data)
    if entry.index != index:
        raise ChainError(index, f"says that it is entry {entry.index}")
    return entry


def _fold_rare(store: EntryStore, keys: KeyHistory, covered: int) -> tuple[HaltState, KeyHistory]:
    """The halts and keys after the first `covered` entries, which were checked when they were appended."""
    halts = HaltState()
    for index, data in store.entries_of(("halt", "resume", "key")):
        if index >= covered:
            break
        with _blame(index):
            document = read_document(Entry.from_bytes(data).envelope)
            if isinstance(document, Halt):
                halts = halts.after_halt(index, document)
            elif isinstance(document, Resume):
                halts = halts.after_resume(document)
            keys = keys.after(index, document)
    return halts, keys


@contextmanager
def _blame(index: int) -> Iterator[None]:
    """Raise errors as ChainError that names the entry."""
    try:
        yield
    except (FormatError, SignatureError, NotFound) as error:
        raise ChainError(index, str(error)) from error
