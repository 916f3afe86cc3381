"""Whom a verifier trusts: files that the command line names. The bundle's own keys count only with --as-claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from ledger.bundle import layout
from ledger.bundle.folder import BundleFolder
from ledger.bundle.proven_statement import is_statement
from ledger.bundle.report import Trust
from ledger.errors import FormatError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.tlog_policy import Policy
from services.cli.failures.exits import UsageError, brought_by
from services.cli.jobs.receipts.promise_file import read_promise_file
from services.cli.jobs.receipts.text_reader import ModelTextReader

_LONGEST_STATEMENT = 1 << 20  # bytes
_PROOF_BEGINS = b"c2sp.org/tlog-proof@"


@dataclass(frozen=True, slots=True)
class Sources:
    """The command line's options about trust, as in the help of `kolm verify`. `as_of` None is now, unless replays are
    counted `by_log_clock`.
    """

    trusted: Path
    policy: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    as_of: datetime | None = None
    by_log_clock: bool = False
    max_unreplayable: int = 0
    max_age: timedelta | None = None
    tsa: Path | None = None
    as_claimed: bool = False
    model: Path | None = None
    promises: tuple[Path, ...] = ()


def is_proof(path: Path) -> bool:
    """Whether a file is a tlog-proof, by its first line."""
    return _beginning(path, len(_PROOF_BEGINS)) == _PROOF_BEGINS


def is_json(path: Path) -> bool:
    """Whether a file may be JSON, which no bundle is."""
    return _beginning(path, 1) in (b"{", b"[")


def read_statement(path: Path) -> bytes | None:
    """The bytes of a SCITT statement; None for anything else."""
    data = _beginning(path, _LONGEST_STATEMENT)
    return data if is_statement(data) else None


def _beginning(path: Path, size: int) -> bytes:
    """At most so many bytes; none of what cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def own_trust(sources: Sources) -> Trust:
    """Raises UsageError for files that are missing or wrong, KeyFileError."""
    if not sources.trusted.is_dir():
        raise UsageError(
            f"whose signatures do you trust? {sources.trusted} is not a directory",
            "name one with --trusted; --as-claimed takes the bundle's own, which shows only that it agrees with itself",
        )
    keys, policy = TrustedKeys.load(sources.trusted, retired=True), _own_policy(sources)
    if policy is None and not keys.keys("log"):
        raise UsageError(
            f"whose signatures do you trust? {sources.trusted} holds no public key of a log (log-….pub)",
            "kolm trust add FILE, or name the folder with --trusted",
        )
    return _trust(sources, keys, policy)


def claimed_trust(sources: Sources, bundle: BundleFolder) -> Trust:
    """The keys and the policy that came with the bundle. Raises FormatError, UsageError."""
    keys: dict[str, list[PublicKey]] = {role: [] for role in ROLES}
    paths = bundle.paths()
    for path in paths:
        role = PurePosixPath(path).stem.split("-", 1)[0]
        if path.startswith("keys/") and role in keys:
            keys[role].append(PublicKey.from_pem(bundle.read(path)))
    policy = Policy.from_bytes(bundle.read(layout.POLICY)) if layout.POLICY in paths else None
    return _trust(sources, TrustedKeys({role: tuple(found) for role, found in keys.items()}), policy)


def _own_policy(sources: Sources) -> Policy | None:
    path = sources.policy or sources.trusted / "policy"
    if sources.policy is None and not path.is_file():
        return None
    try:
        return Policy.from_bytes(_read(path, "--policy"))
    except FormatError as error:
        raise UsageError(f"--policy: {path} is no policy: {error}") from None


def _trust(sources: Sources, keys: TrustedKeys, policy: Policy | None) -> Trust:
    now = datetime.now(UTC)
    return Trust(
        keys=keys,
        policy=policy,
        earlier=tuple(_checkpoint(path) for path in sources.checkpoints),
        as_of=None if sources.by_log_clock else sources.as_of or now,
        check_timestamp=None if sources.tsa is None else _timestamp_check(sources.tsa),
        now=now,
        max_unreplayable=sources.max_unreplayable,
        max_age=sources.max_age,
        reader=None if sources.model is None else ModelTextReader(sources.model),
        promises=tuple(map(read_promise_file, sources.promises)),
    )


def _timestamp_check(path: Path) -> Callable[[bytes, bytes], datetime]:
    try:
        from ledger.witness.timestamp_token import Authority
    except ImportError:
        raise UsageError("--tsa: timestamps need rfc3161-client", brought_by("timestamp")) from None
    try:
        return Authority.from_pem(_read(path, "--tsa")).check
    except FormatError as error:
        raise UsageError(f"--tsa: {path} holds no certificates: {error}") from None


def _checkpoint(path: Path) -> bytes:
    data = _read(path, "--checkpoint")
    try:
        Checkpoint.from_text(Note.from_bytes(data).text)
    except FormatError as error:
        hint = "a bundle's file `checkpoint` is one; `kolm ledger head --note` prints another"
        raise UsageError(f"--checkpoint: {path} is no checkpoint: {error}", hint) from None
    return data


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from None
