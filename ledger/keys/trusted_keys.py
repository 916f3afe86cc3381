"""The public keys that a verifier trusts for each role, and how many operators have to sign a resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledger.errors import FormatError, KeyFileError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_scope import EVERYTHING
from ledger.keys.signer import Signer
from ledger.keys.threshold import FixedThreshold, Threshold

RETIRED = "retired"
"""Folder among the trusted keys for those that another key has replaced."""

SCOPED = ("receipts",)
"""The roles whose keys may be trusted for a part alone: receipts and promises say what they are about."""


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Which public keys a verifier accepts for which role, and how many operators have to sign a resume.

    Trust comes from here alone, never from the bytes that are verified.
    """

    by_role: Mapping[str, tuple[PublicKey, ...]] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=FixedThreshold)

    @classmethod
    def of(cls, *keys: Signer) -> TrustedKeys:
        """Trust the public halves of `keys`, each for its own role."""
        return cls({role: tuple(key.public for key in keys if key.role == role) for role in ROLES})

    @classmethod
    def load(cls, directory: Path, *, retired: bool = True) -> TrustedKeys:
        """The keys in a directory's `<role>.pub` and `<role>-*.pub` files, and its threshold. Raises KeyFileError.

        With `retired`, those in its folder `retired` too: they sign nothing new, but have signed old entries.
        """
        folders = [directory, directory / RETIRED] if retired and (directory / RETIRED).is_dir() else [directory]
        try:
            keys = {role: tuple(_load_all(folders, role)) for role in ROLES}
        except OSError as error:
            raise KeyFileError(f"cannot read trusted keys in {directory}: {error.strerror}") from None
        return cls(keys, FixedThreshold.load(directory))

    def keys(self, role: str) -> tuple[PublicKey, ...]:
        return self.by_role.get(role, ())

    def scopes(self, role: str) -> dict[str, dict[str, list[str]]]:
        """What the keys that may sign for a part alone are trusted for, by key id."""
        return {key.key_id: key.scope.to_document() for key in self.keys(role) if key.scope != EVERYTHING}

    def find(self, role: str, key_id: str) -> PublicKey | None:
        return next((key for key in self.keys(role) if key.key_id == key_id), None)


def _load_all(folders: Iterable[Path], role: str) -> Iterable[PublicKey]:
    found = dict[PublicKey, PublicKey]()
    for path in (path for folder in folders for path in _files_of(folder, role)):
        key = _load_public(path)
        if key.scope != EVERYTHING and role not in SCOPED:
            raise KeyFileError(
                f"{path}: expected no scope above a key of role {role}: {', '.join(SCOPED)} keys have one"
            )
        if found.setdefault(key, key).scope != key.scope:
            raise KeyFileError(f"{path}: the same key stands in another file there with another scope; remove one")
    return found


def _files_of(directory: Path, role: str) -> Iterable[Path]:
    return (path for path in sorted(directory.iterdir()) if path.suffix == ".pub" and _role_of(path) == role)


def _role_of(path: Path) -> str:
    return path.stem.split("-", 1)[0]


def _load_public(path: Path) -> PublicKey:
    try:
        return PublicKey.from_pem(path.read_bytes())
    except FormatError as error:
        raise KeyFileError(f"{path} is not a PEM public key: {error}") from None
