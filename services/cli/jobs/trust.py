"""The public keys that a person at the command line trusts, and what they show about a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.durable_file import write_durably
from ledger.errors import FormatError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_file import write_public_file
from ledger.keys.key_scope import EVERYTHING, KeyScope
from ledger.keys.note import Note
from ledger.keys.signer import open_signer
from ledger.keys.trusted_keys import RETIRED, SCOPED, TrustedKeys
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from services.cli.failures.exits import Missing, UsageError


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key among the trusted ones; `retired` where another has replaced it. `is_new`: it came in just now, or
    its scope did.
    """

    role: str
    key_id: str
    path: Path
    retired: bool = False
    is_new: bool = False
    scope: KeyScope = EVERYTHING


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint and its signed note. `checked` is False if there is no directory of keys at `trusted`."""

    checkpoint: Checkpoint
    note: bytes
    checked: bool
    trusted: Path


def load_trusted(directory: Path) -> TrustedKeys:
    """Raises UsageError if there is no directory of keys, KeyFileError for a file that is no key."""
    if not directory.is_dir():
        raise _no_directory(directory)
    return TrustedKeys.load(directory)


def opened_checkpoint(note: bytes, trusted: Path) -> OpenedCheckpoint:
    """Raises SignatureError, FormatError for a note that is no checkpoint of a trusted log."""
    if not trusted.is_dir():
        return OpenedCheckpoint(Checkpoint.from_text(Note.from_bytes(note).text), note, False, trusted)
    return OpenedCheckpoint(open_checkpoint(note, load_trusted(trusted).keys("log")), note, True, trusted)


def trust_own(key: Path, role: str, trusted: Path, passphrase_file: Path | None = None) -> TrustedKey:
    """Trust the key of what the same person runs from this data directory, made where missing. Raises KeyFileError."""
    return add_trusted(open_signer(key, role, passphrase_file, create=True).public, role, trusted)


def add_files(
    places: Iterable[Path], role: str | None, trusted: Path, scope: KeyScope = EVERYTHING
) -> tuple[TrustedKey, ...]:
    """Trust the public keys in files, or in the `<role>-….pub` files of folders and what is below them.

    `role` None: each file's name says it. `scope` takes the place of the files' own, unless it is empty. Raises
    UsageError, Missing, KeyFileError. Nothing is added unless all can be.
    """
    found = [(_public_key(path), role or _named_role(path)) for place in places for path in _key_files(place)]
    if scope != EVERYTHING:
        found = [(replace(key, scope=scope), key_role) for key, key_role in found]
    for key, key_role in found:
        if key.scope != EVERYTHING and key_role not in SCOPED:
            raise UsageError(f"{key.key_id} is of role {key_role}: a scope is for keys of role {', '.join(SCOPED)}")
    return tuple(add_trusted(key, key_role, trusted) for key, key_role in found)


def add_trusted(key: PublicKey, role: str, trusted: Path) -> TrustedKey:
    """Put a public key among the trusted ones of a directory; made where missing. Raises KeyFileError.

    One that is there takes the scope of `key`; where that is empty it keeps its own.
    """
    for known in list_trusted(trusted) if trusted.is_dir() else ():
        if (known.role, known.key_id, known.retired) == (role, key.key_id, False):
            if key.scope in (EVERYTHING, known.scope):
                return known
            write_durably(known.path, key.to_pem(), mode=0o644)
            return replace(known, scope=key.scope, is_new=True)
    path = trusted / f"{role}-{key.key_id.removeprefix('ed25519:')[:16]}.pub"
    write_public_file(path, key.to_pem())
    return TrustedKey(role, key.key_id, path, is_new=True, scope=key.scope)


def list_trusted(trusted: Path) -> tuple[TrustedKey, ...]:
    """The keys of a directory, retired ones last. Raises UsageError, KeyFileError for a file that is no key."""
    if not trusted.is_dir():
        raise _no_directory(trusted)
    places = [(path, False) for path in sorted(trusted.glob("*.pub"))]
    places += [(path, True) for path in sorted((trusted / RETIRED).glob("*.pub"))]
    return tuple(_trusted(path, old) for path, old in places)


def remove_trusted(name: str, trusted: Path, *, retire: bool) -> TrustedKey:
    """Trust a key no longer; with `retire` only for what it has signed so far.

    `name` is its id, the beginning of its digits, or its file's name. Raises Missing, UsageError for several.
    """
    named = [key for key in list_trusted(trusted) if not (retire and key.retired) and _is_called(key, name)]
    if not named:
        raise Missing(f"no trusted key in {trusted} is called {name}", "`kolm trust list` names them")
    if len(named) > 1:
        raise UsageError(f"{name}: {len(named)} keys are called so", "write more digits of the one that is meant")
    (key,) = named
    if retire:
        write_public_file(trusted / RETIRED / key.path.name, key.path.read_bytes())
    key.path.unlink()
    return key


def _trusted(path: Path, retired: bool) -> TrustedKey:
    key = _public_key(path)
    return TrustedKey(_named_role(path), key.key_id, path, retired, scope=key.scope)


def _is_called(key: TrustedKey, name: str) -> bool:
    digits = name.removeprefix("ed25519:")
    return key.path.name == name or (len(digits) >= 4 and key.key_id.removeprefix("ed25519:").startswith(digits))


def _key_files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(path for path in place.rglob("*.pub"))
    if not found:
        raise Missing(f"there is no public key (*.pub) in {place}", "services put theirs there when they first start")
    return found


def _named_role(path: Path) -> str:
    role = path.stem.split("-", 1)[0]
    if role not in ROLES:
        raise UsageError(f"{path}: its name does not say a role", f"name one with --role: {', '.join(ROLES)}")
    return role


def _public_key(path: Path) -> PublicKey:
    try:
        return PublicKey.from_pem(path.read_bytes())
    except OSError as error:
        raise Missing(f"cannot read {path}: {error.strerror}") from None
    except FormatError as error:
        raise UsageError(f"{path} is not a PEM public key: {error}") from None


def _no_directory(directory: Path) -> UsageError:
    return UsageError(
        f"no trusted keys: {directory} is not a directory",
        "name one with --trusted, or the --data-dir of `kolm up`",
    )
