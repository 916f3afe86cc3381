"""Replaces a key, first in the log, then in the files. If interrupted, the same command completes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import read_document, sign_rotation
from ledger.encoding.timestamp import timestamp
from ledger.errors import StoreLocked
from ledger.keys.ed25519 import ROLES, PublicKey, SigningKey
from ledger.keys.note import Note, VerifierKey
from ledger.keys.trusted_keys import RETIRED, TrustedKeys
from ledger.log.guard import check_continuity
from ledger.log.sequencer import Sequencer
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from services.cli.exits import Failed, Missing, UsageError


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """Where the keys, the trusted keys and the ledger are. Key files are encrypted where there is a `passphrase`."""

    data_dir: Path
    trusted: Path
    database: Path | str
    guard: Path | str
    key_file: Path | None = None
    passphrase: bytes | None = None

    def key(self, role: str) -> Path:
        return self.key_file or self.data_dir / "keys" / f"{role}.pem"

    @property
    def generation(self) -> Path:
        """The state of the service that signs receipts: its key is in its folder `keys`, or a stack's key beside it."""
        own = self.key_file is not None and self.key_file.parent.name == "keys"
        return self.key_file.parent.parent if self.key_file and own else self.data_dir / "generation"


@dataclass(frozen=True, slots=True)
class Rotated:
    """The rotation's entry, and the ids of the two keys."""

    index: int
    old: str
    new: str


def rotate(files: LedgerFiles, role: str, operators: tuple[Path, ...] = ()) -> Rotated:
    """Replace the role's key. `operators`, if there are any, sign in the place of the old key.

    Raises UsageError, Missing, Failed, LedgerError.
    """
    if role not in ROLES or role == "witness":
        raise UsageError(f"{role!r}: expected one of {', '.join(each for each in ROLES if each != 'witness')}")
    path = files.key(role)
    if not path.is_file():
        raise Missing(f"there is no {role} key at {path}")
    _refuse_waiting_receipts(files, role)
    old = SigningKey.load(path, role, files.passphrase)
    new = SigningKey.load_or_create(path.with_suffix(".next.pem"), role, files.passphrase)
    signers = [SigningKey.load(operator, "operator", files.passphrase) for operator in operators] or [old]
    index = _record(files, old, new, signers)
    _swap(files, path, old, new)
    if role == "log":
        _publish_name(files, new)
    return Rotated(index, old.key_id, new.key_id)


def _refuse_waiting_receipts(files: LedgerFiles, role: str) -> None:
    """Raises Failed if receipts wait: they would arrive signed by a key that is no longer valid."""
    waiting = [*files.generation.glob("**/*.append")] if role == "receipts" else []
    if waiting:
        raise Failed(
            f"{len(waiting)} receipts signed with this key have not reached the ledger",
            "start the services, wait until all have arrived, stop them, and run this again",
        )


def _record(files: LedgerFiles, old: SigningKey, new: SigningKey, signers: Sequence[SigningKey]) -> int:
    """Append the rotation, unless an interrupted run has done it. Returns its index."""
    try:
        store = SqlEntryStore.open(files.database)
    except StoreLocked as error:
        raise Failed(str(error), "stop the services first") from None
    with closing(store), closing(SqlGuard.open(files.guard)) as guard:
        recorded = _recorded(store, old, new)
        if recorded is not None:
            return recorded
        log_key = (
            new if new.role == "log" else SigningKey.load(files.data_dir / "keys/log.pem", "log", files.passphrase)
        )
        trusted = _with(TrustedKeys.load(files.trusted), old, new)
        origin = _origin(store)
        check_continuity(store, guard, trusted, origin, files.data_dir / "witnessed")
        entry = KeyEntry(new.role, new.public, timestamp(datetime.now(UTC)), replaces=old.key_id)
        with closing(Sequencer(store, log_key, trusted, origin, guard=guard)) as sequencer:
            return sequencer.append(sign_rotation(entry, new, *signers).to_bytes()).result().index


def _recorded(store: SqlEntryStore, old: SigningKey, new: SigningKey) -> int | None:
    for index, data in store.entries_of(("key",)):
        document = read_document(Entry.from_bytes(data).envelope)
        if isinstance(document, KeyEntry) and (document.public_key, document.replaces) == (new.public, old.key_id):
            return index
    return None


def _publish_name(files: LedgerFiles, new: SigningKey) -> None:
    """Write the log's key for witnesses and policies, as the ledger service does at its next start."""
    with closing(SqlEntryStore.open_for_reading(files.database)) as store:
        name = VerifierKey(_origin(store), new.public).to_text()
    for folder in (files.data_dir, files.data_dir / "public"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.vkey").write_text(f"{name}\n", encoding="utf-8")


def _with(trusted: TrustedKeys, *keys: SigningKey) -> TrustedKeys:
    def more(role: str) -> tuple[PublicKey, ...]:
        own = [key.public for key in keys if key.role == role]
        return tuple(dict.fromkeys([*trusted.keys(role), *own]))

    return TrustedKeys({role: more(role) for role in ROLES}, trusted.threshold)


def _origin(store: SqlEntryStore) -> str:
    note = store.latest_checkpoint()
    if note is None:
        raise Missing("the ledger is empty; start it once, for a name and a first checkpoint")
    return Checkpoint.from_text(Note.from_bytes(note).text).origin


def _swap(files: LedgerFiles, path: Path, old: SigningKey, new: SigningKey) -> None:
    """The public keys come first: a service that starts meanwhile finds its own key trusted, the old or the new one."""
    new.publish(files.trusted)
    old.publish(files.trusted / RETIRED)
    for published in files.trusted.glob(f"{old.role}*.pub"):
        if PublicKey.from_pem(published.read_bytes()) == old.public:
            published.unlink()
    os.replace(path, path.with_name(f"{path.stem}.{old.key_id.rpartition(':')[2][:16]}.retired.pem"))
    os.replace(path.with_suffix(".next.pem"), path)
