"""`kolm trust`: the public keys that are trusted on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from os.path import commonpath, dirname, relpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ledger.durable_file import write_durably
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_file import write_public_file
from ledger.keys.key_scope import EVERYTHING, KeyScope
from ledger.keys.signer import Signer, is_device, open_signer
from ledger.keys.trusted_keys import RETIRED, SCOPED, FixedThreshold, TrustedKeys
from ledger.tree.checkpoint import open_checkpoint
from services.cli.frame import exits, options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer, members
from services.cli.frame.views import Column, View, table

if TYPE_CHECKING:
    from services.client.ledger.ledger import LedgerClient


def add(
    keys: Annotated[list[Path], Argument(metavar="KEYFILE…", help="Public keys, or folders of public keys.")],
    role: Annotated[
        str | None,
        Option(metavar="ROLE", help="Role that they may sign for. Default: from each file's name, ROLE-….pub."),
    ] = None,
    tenant: Annotated[
        list[str] | None, Option(metavar="NAME", help="For keys of role receipts: only these tenants.")
    ] = None,
    base: Annotated[
        list[str] | None, Option(metavar="CID", help="For keys of role receipts: only these bases.")
    ] = None,
    profile: Annotated[
        list[str] | None, Option(metavar="CID", help="For keys of role receipts: only these profiles.")
    ] = None,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Trust public keys, each for one role. Running services with a key of that role take the new key at a restart."""
    if role is not None and role not in ROLES:
        raise UsageError(f"--role: {role!r}: expected one of {', '.join(ROLES)}")
    try:
        scope = KeyScope.of(base_cid=base, profile_cid=profile, tenant=tenant)
    except FormatError as error:
        raise UsageError(f"--{error.field.removesuffix('_cid')}: {error.problem}") from None
    added = [_document(key) for key in add_files(keys, role, paths.trusted, scope)]
    answer(json, added, lambda keys: [_added(key) for key in keys])


def _added(key: dict[str, Any]) -> str:
    return f"{key['key_id']} {'may sign' if key['new'] else 'could sign before'} for {key['role']}: {key['file']}"


def list_(paths: options.Paths = options.PATHS, json: options.Json = False) -> None:
    """List the trusted keys: role, id, file, and their scope if it is restricted."""
    answer(json, [_document(key) for key in list_trusted(paths.trusted)], _keys_view)


def remove(
    key: Annotated[str, Argument(help="Id of the key, its first digits, or the name of its file.")],
    retire: Annotated[
        bool, Option("--retire", help="Keep it for earlier signatures: move it to the folder retired/.")
    ] = False,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Trust a key no longer, in running services too. Without --retire, its signatures no longer verify."""
    removed = remove_trusted(key, paths.trusted, retire=retire)
    line = f"{removed.key_id} of role {removed.role} is {'retired' if retire else 'trusted no longer'}"
    answer(json, [_document(removed)], lambda _: line)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A trusted public key; `retired` if another has replaced it. `is_new`: it, or its scope, was added just now."""

    role: str
    key_id: str
    path: Path
    retired: bool = False
    is_new: bool = False
    scope: KeyScope = EVERYTHING


def load_trusted(directory: Path) -> TrustedKeys:
    """Raises UsageError if there is no directory of keys, KeyFileError for another file than a key."""
    if not directory.is_dir():
        raise _no_directory(directory)
    return TrustedKeys.load(directory)


def trust_own(key: Path, role: str, trusted: Path, passphrase_file: Path | None = None) -> TrustedKey:
    """Trust the key of a service that runs on this data directory, made if missing. Raises KeyFileError."""
    return add_trusted(open_signer(key, role, passphrase_file, create=True).public, role, trusted)


def add_files(
    places: Iterable[Path], role: str | None, trusted: Path, scope: KeyScope = EVERYTHING
) -> tuple[TrustedKey, ...]:
    """Trust the public keys in files, or in the `<role>-….pub` files below folders.

    `role` None takes it from each file's name. A `scope` that is not empty replaces the files' own. Raises UsageError,
    NotFound, KeyFileError; then nothing is added.
    """
    found = [(_public_key(path), role or _named_role(path)) for place in places for path in _key_files(place)]
    if scope != EVERYTHING:
        found = [(key.scoped(scope), key_role) for key, key_role in found]
    for key, key_role in found:
        if key.scope != EVERYTHING and key_role not in SCOPED:
            raise UsageError(f"{key.key_id} is of role {key_role}: a scope is for keys of role {', '.join(SCOPED)}")
    return tuple(add_trusted(key, key_role, trusted) for key, key_role in found)


def add_trusted(key: PublicKey, role: str, trusted: Path) -> TrustedKey:
    """Add a public key to the trusted keys of a directory, made if missing. Raises KeyFileError.

    A key that is trusted already gets the scope of `key`, unless that is empty.
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
    """The keys of a directory, retired ones last. Raises UsageError, KeyFileError for another file than a key."""
    if not trusted.is_dir():
        raise _no_directory(trusted)
    places = [(path, False) for path in sorted(trusted.glob("*.pub"))]
    places += [(path, True) for path in sorted((trusted / RETIRED).glob("*.pub"))]
    keys = [(_public_key(path), path, retired) for path, retired in places]
    return tuple(TrustedKey(_named_role(path), key.key_id, path, old, scope=key.scope) for key, path, old in keys)


def remove_trusted(name: str, trusted: Path, *, retire: bool) -> TrustedKey:
    """Trust a key no longer; with `retire`, only for earlier signatures.

    `name` is its id, the beginning of its digits, or its file's name. A key may have several files, as a retired one
    that is trusted again has; none of them is left. Raises NotFound, UsageError for several keys.
    """
    known = list_trusted(trusted)
    named = {(key.role, key.key_id) for key in known if not (retire and key.retired) and _is_called(key, name)}
    if not named:
        raise exits.NotFound(f"no trusted key in {trusted} is called {name}", "`kolm trust list` names them")
    if len(named) > 1:
        raise UsageError(f"{name}: {len(named)} keys are called so", "write more digits, or the name of a file")
    files = [key for key in known if (key.role, key.key_id) in named]
    removed = [key for key in files if not (retire and key.retired)]
    if retire and removed != files:
        write_durably(files[-1].path, removed[0].path.read_bytes(), mode=0o644)
    elif retire:
        write_public_file(trusted / RETIRED / removed[0].path.name, removed[0].path.read_bytes())
    for key in removed:
        key.path.unlink()
    return removed[0]


def operator_key(path: Path, trusted: Path, passphrase_file: Path | None, ledger: LedgerClient | None) -> Signer:
    """The operator's key, made at first use. Raises KeyFileError, KolmError, and UsageError if there is no key and none
    is made.

    A key is made, and if one operator is enough its public half published, only next to trusted keys that signed the
    checkpoint of this `ledger`: a mistyped data directory, or another ledger's, gets no operator. On another machine
    the ledger's operator has to add the public half. If several have to sign, keys are trusted deliberately: signing
    alone makes no second operator.
    """
    own = ledger is not None and _is_of(trusted, ledger)
    there = is_device(path) or path.exists()
    if not there and not own:
        raise UsageError(
            f"there is no operator's key at {path}, and none is made: {trusted} does not hold this ledger's keys",
            "is --data-dir the ledger's? Else name the key with --key",
        )
    key = open_signer(path, "operator", passphrase_file, create=not there)
    if own and operators_needed(trusted) == 1:
        key.publish(trusted)
    return key


def co_signer(path: Path, trusted: Path, passphrase_file: Path | None, ledger: str) -> Signer:
    """The key of another operator; only its first use needs the ledger. Raises as `operator_key` does."""
    if is_device(path) or path.exists():
        return operator_key(path, trusted, passphrase_file, None)
    with ledger_at(ledger) as client:
        return operator_key(path, trusted, passphrase_file, client)


def _is_of(trusted: Path, ledger: LedgerClient) -> bool:
    """Whether a key in `trusted` signed the ledger's checkpoint."""
    if not trusted.is_dir():
        return False
    try:
        open_checkpoint(ledger.checkpoint().note, TrustedKeys.load(trusted).keys("log"))
    except (FormatError, SignatureError):
        return False
    return True


def operators_needed(trusted: Path) -> int:
    """The number of operators that have to sign, by the trusted keys of this machine. Raises KeyFileError."""
    return FixedThreshold.load(trusted).at(None)


def _is_called(key: TrustedKey, name: str) -> bool:
    digits = name.removeprefix("ed25519:")
    return key.path.name == name or (len(digits) >= 4 and key.key_id.removeprefix("ed25519:").startswith(digits))


def _key_files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = sorted(place.rglob("*.pub"))
    if not found:
        raise exits.NotFound(
            f"there is no public key (*.pub) in {place}", "services put theirs there when they first start"
        )
    return found


def _named_role(path: Path) -> str:
    role = path.stem.split("-", 1)[0]
    if role not in ROLES:
        raise UsageError(f"{path}: its name begins with no role", f"name one with --role: {', '.join(ROLES)}")
    return role


def _public_key(path: Path) -> PublicKey:
    try:
        return PublicKey.from_pem(path.read_bytes())
    except OSError as error:
        raise exits.NotFound(f"cannot read {path}: {error.strerror}") from None
    except FormatError as error:
        raise UsageError(f"{path} is not a PEM public key: {error}") from None


def _no_directory(directory: Path) -> UsageError:
    return UsageError(
        f"no trusted keys: {directory} is not a directory", "name one with --trusted, or the --data-dir of `kolm up`"
    )


def _document(key: TrustedKey) -> dict[str, Any]:
    return members(key, "role", "key_id", "retired", "scope") | {"file": key.path, "new": key.is_new}


def _keys_view(keys: list[dict[str, Any]]) -> View:
    """The folder, and one line for each key in it."""
    if not keys:
        return "no key is trusted"
    folder = commonpath([dirname(key["file"]) for key in keys])
    shown = len("ed25519:") + 12  # enough for `kolm trust remove`, and a line of 80 columns; --json has all of it
    return [
        f"in {folder}:",
        table(
            keys,
            Column("role", "role"),
            Column("key", lambda key: f"{key['key_id'][:shown]}…", whole=True),
            Column("file", lambda key: relpath(key["file"], folder), whole=True),
            Column("for", _trusted_for),
        ),
    ]


def _trusted_for(key: dict[str, Any]) -> str:
    scope = [f"{name} {value}" for name, values in key["scope"].items() for value in values]
    return "\n".join([*(["retired"] if key["retired"] else []), *scope])
