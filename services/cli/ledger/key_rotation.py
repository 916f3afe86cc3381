"""`kolm ledger rotate-key`: replaces a key, first in the log, then in the files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import read_document, sign_rotation
from ledger.durable_file import sync_path, write_durably
from ledger.encoding.text_forms import timestamp
from ledger.errors import LedgerError, StoreLocked
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_file import publish_key
from ledger.keys.note import Note, VerifierKey
from ledger.keys.signer import Signer, is_device, open_signer
from ledger.keys.trusted_keys import RETIRED, TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.output import answer, members, remark

if TYPE_CHECKING:
    from ledger.sql.store import SqlEntryStore


def rotate_key(
    role: Annotated[str, Argument(help="Role of the key: receipts, log, auditor, operator or publisher.")],
    paths: options.Paths = options.PATHS,
    key_file: Annotated[
        Path | None,
        Option(
            "--key-file",
            metavar="FILE|URI",
            help="The private key to replace, a file or a PKCS#11 URI; with --by-operator also its public key, a file "
            "*.pub. Default: <data-dir>/keys/<role>.pem.",
        ),
    ] = None,
    new_key: Annotated[
        Path | None,
        Option(metavar="FILE|URI", help="An existing key to take its place; required for a key in a device."),
    ] = None,
    log_key: Annotated[
        Path | None, Option(metavar="FILE|URI", help="The log's key. Default: <data-dir>/keys/log.pem.")
    ] = None,
    by_operator: Annotated[
        bool, Option("--by-operator", help="Operators sign instead of the old key, if that was lost or stolen.")
    ] = False,
    operator_key: Annotated[
        list[Path] | None,
        Option(
            "--operator-key",
            help="An operator's private key, for --by-operator; repeat it until operator.threshold is met. "
            "Default: <data-dir>/keys/operator.pem.",
        ),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    database_url: Annotated[
        str | None,
        Option(envvar="KOLM_LEDGER_DATABASE_URL", help="The ledger's database. Default: <data-dir>/ledger.sqlite3."),
    ] = None,
    guard_url: Annotated[
        str | None,
        Option(envvar="KOLM_LEDGER_GUARD_URL", help="The ledger's guard. Default: <data-dir>/guard.sqlite3."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Replace a key, with the services stopped. Later signatures of the old key are refused and flagged."""
    data_dir = paths.data_dir
    places = (database_url or data_dir / "ledger.sqlite3", guard_url or data_dir / "guard.sqlite3")
    files = LedgerFiles(data_dir, paths.trusted, *places, key_file, new_key, log_key, key_passphrase_file)
    if operator_key and not by_operator:
        raise UsageError("--operator-key: needs --by-operator")
    operators = tuple(operator_key or [data_dir / "keys/operator.pem"]) if by_operator else ()
    done = rotate(files, role, operators)
    line = f"entry {done.index}: from here on {done.new} signs for {role}, and {done.old} no longer"
    answer(json, members(done, "index", "old", "new") | {"role": role}, lambda _: line)
    if new_key is not None and not json:
        remark(f"use it from now on: --key-file '{new_key}'")
    if role == "log" and not json:
        remark(f"{data_dir / 'log.vkey'} has the new key: witnesses and policies need it in addition to the old one")


@dataclass(frozen=True, slots=True)
class Rotation:
    """A recorded rotation: its entry, and the ids of the old key and of the new one."""

    index: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """Paths of the keys, the trusted keys and the ledger. Keys are files, or PKCS#11 URIs of keys in a device.

    `passphrase_file` has the passphrase of the files, or the PIN of the device. `new_key` is an existing successor, as
    a key in a device has to be.
    """

    data_dir: Path
    trusted: Path
    database: Path | str
    guard: Path | str
    key_file: Path | None = None
    new_key: Path | None = None
    log_key: Path | None = None
    passphrase_file: Path | None = None

    def key(self, role: str) -> Path:
        named = None if self.names_public_key else self.key_file
        return named or self.data_dir / "keys" / f"{role}.pem"

    @property
    def names_public_key(self) -> bool:
        return self.key_file is not None and self.key_file.suffix == ".pub"

    def signer(self, key: Path, role: str, *, create: bool = False) -> Signer:
        """Raises KeyFileError. With a device, the passphrase is its PIN, and files are read without one."""
        pin = any(each is not None and is_device(each) for each in (self.key_file, self.new_key, self.log_key))
        secret = None if pin and not is_device(key) else self.passphrase_file
        return open_signer(key, role, secret, create=create)

    @property
    def generation(self) -> Path:
        """The state of the service that signs receipts: the folder around its `keys`, or a stack's folder."""
        own = self.key_file is not None and self.key_file.parent.name == "keys"
        return self.key_file.parent.parent if self.key_file and own else self.data_dir / "generation"


def rotate(files: LedgerFiles, role: str, operators: tuple[Path, ...] = ()) -> Rotation:
    """Replace the role's key. `operators`, if there are any, sign instead of the old key.

    Raises UsageError, NotFound, Failed, LedgerError.
    """
    if role not in ROLES or role == "witness":
        raise UsageError(f"{role!r}: expected one of {', '.join(each for each in ROLES if each != 'witness')}")
    path = files.key(role)
    if is_device(path) and files.new_key is None:
        raise UsageError("--new-key: expected the successor of a key in a device", "make it there, and name it")
    if files.names_public_key and not operators:
        raise UsageError("--key-file: expected the private key, which has to sign; a public key needs --by-operator")
    _refuse_waiting_receipts(files, role)
    another = False  # whether the file is a key of this machine that is not replaced
    signers = [files.signer(operator, "operator") for operator in operators]
    if operators and (files.names_public_key or not (is_device(path) or path.is_file())):
        old = _public_key(files, role)
        another = not is_device(path) and path.is_file() and files.signer(path, role).public != old
        if another and files.new_key is None:
            hint = "name the key that takes its place, --new-key FILE, or run this where the replaced key was"
            raise UsageError(f"--key-file: {path} is another key, which stays", hint)
    elif is_device(path) or path.is_file():
        holder = files.signer(path, role)
        old, signers = holder.public, signers or [holder]
    else:
        raise exits.NotFound(f"there is no {role} key at {path}", "if it is lost, operators sign: --by-operator")
    new = files.signer(files.new_key or _next_to(path), role, create=True)
    if new.public == old:
        raise UsageError(
            "--new-key: is the key to replace",
            f"to complete an interrupted run, name the replaced key in {files.trusted / RETIRED} by --key-file",
        )
    index = _record(files, old, new, signers)
    _swap(files, None if another else path, old, new)
    if role == "log":
        _publish_name(files, new)
    return Rotation(index, old.key_id, new.key_id)


def _public_key(files: LedgerFiles, role: str) -> PublicKey:
    """The key that operators replace: the named one, or the only trusted one of the role. Raises UsageError, NotFound,
    LedgerError.
    """
    if files.key_file is not None and files.names_public_key:
        try:
            return PublicKey.from_pem(files.key_file.read_bytes())
        except OSError as error:
            raise exits.NotFound(f"cannot read {files.key_file}: {error.strerror}") from None
    trusted = TrustedKeys.load(files.trusted, retired=False).keys(role)
    if len(trusted) != 1:
        raise UsageError(
            f"--key-file: expected the public key to replace; {len(trusted)} {role} keys are in {files.trusted}",
            f"name its file {role}-….pub there",
        )
    return trusted[0]


def _refuse_waiting_receipts(files: LedgerFiles, role: str) -> None:
    """Raises Failed if receipts wait for the ledger, because they would arrive with an invalid key."""
    from services.generation.receipts.journal import JOURNAL, open_records, read_records

    journals = files.generation.glob(f"**/{JOURNAL}") if role == "receipts" else ()
    waiting = sum(len(open_records(read_records(path.read_bytes())[0])) for path in journals)
    if waiting:
        raise Failed(
            f"{waiting} receipts signed with this key have not reached the ledger",
            "start the services, wait until all have arrived, stop them, and run this again",
        )


def _next_to(path: Path) -> Path:
    return path.with_suffix(".next.pem")


def _record(files: LedgerFiles, old: PublicKey, new: Signer, signers: Sequence[Signer]) -> int:
    """Append the rotation, unless an interrupted run has appended it; then sign it if that run did not. Returns its
    index.
    """
    from ledger.log.admission import admit
    from ledger.log.continuity import check_continuity
    from ledger.log.recovery import recover
    from ledger.sql.guard import SqlGuard
    from ledger.sql.store import SqlEntryStore

    try:
        store = SqlEntryStore.open(files.database)
    except StoreLocked as error:
        raise Failed(str(error), "stop the services first") from None
    with closing(store), closing(SqlGuard.open(files.guard)) as guard:
        log_key = new if new.role == "log" else files.signer(files.log_key or files.data_dir / "keys/log.pem", "log")
        trusted = _with(TrustedKeys.load(files.trusted), new.role, old, new.public)
        origin = _origin(store)
        check_continuity(store, guard, trusted, origin, files.data_dir / "witnessed")
        recorded = _recorded(store, old, new)
        # A new log key signs no head without the entry that introduces it, also if a crash left entries unsigned.
        signs_tail = recorded is not None or new.role != "log"
        writer = recover(store, log_key, trusted, origin, guard, signs_tail=signs_tail)
        if recorded is not None:
            return recorded
        entry = KeyEntry(new.role, new.public, timestamp(datetime.now(UTC)), replaces=old.key_id)
        (appended,) = writer.write([admit(sign_rotation(entry, new, *signers).to_bytes(), None, trusted)])
        if isinstance(appended, LedgerError):
            raise appended
        return appended.index


def _recorded(store: SqlEntryStore, old: PublicKey, new: Signer) -> int | None:
    for index, data in store.entries_of(("key",)):
        document = read_document(Entry.from_bytes(data).envelope)
        if isinstance(document, KeyEntry) and (document.public_key, document.replaces) == (new.public, old.key_id):
            return index
    return None


def _publish_name(files: LedgerFiles, new: Signer) -> None:
    """Write the log's key for witnesses and policies, as the ledger service does at its next start."""
    from ledger.sql.store import SqlEntryStore

    with closing(SqlEntryStore.open_for_reading(files.database)) as store:
        name = VerifierKey(_origin(store), new.public).to_text()
    for folder in (files.data_dir, files.data_dir / "public"):
        write_durably(folder / "log.vkey", f"{name}\n".encode(), mode=0o644)


def _with(trusted: TrustedKeys, role: str, *keys: PublicKey) -> TrustedKeys:
    more = tuple(dict.fromkeys([*trusted.keys(role), *keys]))
    return TrustedKeys({each: more if each == role else trusted.keys(each) for each in ROLES}, trusted.threshold)


def _origin(store: SqlEntryStore) -> str:
    note = store.latest_checkpoint()
    if note is None:
        raise exits.NotFound("the ledger is empty; start it once, for a name and a first checkpoint")
    return Checkpoint.from_text(Note.from_bytes(note).text).origin


def _swap(files: LedgerFiles, path: Path | None, old: PublicKey, new: Signer) -> None:
    """Replace the files, public keys first: a service that starts meanwhile finds its key trusted, old or new. `path`
    is the private key's, None if it is not on this machine.
    """
    trusted = TrustedKeys.load(files.trusted).find(new.role, old.key_id) or old
    for key, folder in ((new.public, files.trusted), (old, files.trusted / RETIRED)):
        publish_key(key.scoped(trusted.scope).to_pem(), key.key_id, new.role, folder)
    for published in files.trusted.glob(f"{new.role}*.pub"):
        if PublicKey.from_pem(published.read_bytes()) == old:
            published.unlink()
    if path is None:
        return
    retired = path.with_name(f"{path.stem}.{old.key_id.rpartition(':')[2][:16]}.retired.pem")
    if files.new_key is None:
        if path.is_file():
            write_durably(retired, path.read_bytes())  # a copy: if this stops here, `path` still has a key
        os.replace(_next_to(path), path)
        sync_path(path.parent)
    elif not is_device(path) and path.is_file():
        os.replace(path, retired)
