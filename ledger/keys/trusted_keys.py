"""The public keys that a verifier trusts for each role, and how many operators have to sign a resume.

The file `operator.threshold` among the trusted keys has the number:

    # two of our three operators, since the third one joined
    1
    2 from 5120

A line is a number, and the index from which it is valid (default 0): a resume under an older rule stays valid. Without
the file, one signature is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ledger.errors import FormatError, KeyFileError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_scope import EVERYTHING
from ledger.keys.signer import Signer

FILE_NAME = "operator.threshold"

MOST_SIGNATURES = 16
"""The most signatures that one envelope carries."""

_LINE = re.compile(r"([0-9]{1,2})(?: from ([0-9]{1,15}))?")

RETIRED = "retired"
"""Folder of replaced keys, within the folder of trusted keys."""

SCOPED = ("receipts",)
"""The roles whose keys may have a scope: receipts and promises name their base, profile and tenant."""


class Threshold(Protocol):
    """The number of signatures that a resume needs, by its index."""

    def at(self, index: int | None) -> int:
        """The threshold for the entry at `index`; None is the last step's, before the entry has an index."""
        ...


@dataclass(frozen=True, slots=True)
class FixedThreshold:
    """`steps` are (index, signatures), by rising index, the first at 0."""

    steps: tuple[tuple[int, int], ...] = ((0, 1),)

    def at(self, index: int | None) -> int:
        """`Threshold` by steps."""
        return next(needed for start, needed in reversed(self.steps) if index is None or start <= index)

    @classmethod
    def load(cls, directory: Path) -> FixedThreshold:
        """The threshold in the directory's file; one signature if there is no file. Raises KeyFileError."""
        path = directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"cannot read {path}: {error}") from None
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return cls(_steps([line for line in lines if line], path))


def _steps(lines: list[str], path: Path) -> tuple[tuple[int, int], ...]:
    steps = [_step(line, path) for line in lines]
    starts = [start for start, _ in steps]
    if not steps or starts[0] != 0 or sorted(set(starts)) != starts:
        raise KeyFileError(f"{path}: expected a line like '2', then lines like '3 from 5120' by rising index")
    return tuple(steps)


def _step(line: str, path: Path) -> tuple[int, int]:
    match = _LINE.fullmatch(line)
    if match is None or not 1 <= int(match[1]) <= MOST_SIGNATURES:
        raise KeyFileError(f"{path}: expected a number of operators from 1 to {MOST_SIGNATURES}, got {line!r}")
    return int(match[2] or 0), int(match[1])


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys that a verifier accepts for each role, and the number of operators who have to sign a resume.
    Trust never comes from the verified bytes.
    """

    by_role: Mapping[str, tuple[PublicKey, ...]] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=FixedThreshold)

    @classmethod
    def of(cls, *keys: Signer) -> TrustedKeys:
        """Trust the public keys of `keys`, each for its own role."""
        return cls({role: tuple(key.public for key in keys if key.role == role) for role in ROLES})

    @classmethod
    def load(cls, directory: Path, *, retired: bool = True) -> TrustedKeys:
        """The keys in a directory's `<role>.pub` and `<role>-*.pub` files, and its threshold. Raises KeyFileError.

        With `retired`, also the keys in its folder `retired`, which have signed old entries.
        """
        folders = [directory, directory / RETIRED] if retired and (directory / RETIRED).is_dir() else [directory]
        try:
            keys = {role: tuple(_load_all(folders, role)) for role in ROLES}
        except OSError as error:
            raise KeyFileError(f"cannot read trusted keys in {directory}: {error.strerror}") from None
        return cls(keys, FixedThreshold.load(directory))

    def now(self) -> TrustedKeys:
        """The keys that are trusted now, the same object until they change; `TrustedDirectory` reads its directory
        again.
        """
        look: Callable[[], TrustedKeys] | None = getattr(self.by_role, "now", None)
        return self if look is None else look()

    def keys(self, role: str) -> tuple[PublicKey, ...]:
        return self.by_role.get(role, ())

    def scopes(self, role: str) -> dict[str, dict[str, list[str]]]:
        """Scopes of restricted keys, by key id."""
        return {key.key_id: key.scope.to_document() for key in self.keys(role) if key.scope != EVERYTHING}

    def find(self, role: str, key_id: str) -> PublicKey | None:
        return next((key for key in self.keys(role) if key.key_id == key_id), None)


def _load_all(folders: Iterable[Path], role: str) -> Iterable[PublicKey]:
    found = dict[PublicKey, PublicKey]()
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if path.suffix != ".pub" or path.stem.split("-", 1)[0] != role:
            continue
        key = _load_public(path)
        if key.scope != EVERYTHING and role not in SCOPED:
            raise KeyFileError(
                f"{path}: expected no scope above a key of role {role}: {', '.join(SCOPED)} keys have one"
            )
        if found.setdefault(key, key).scope != key.scope:
            raise KeyFileError(f"{path}: another file there has the same key with another scope; remove one")
    return found


def _load_public(path: Path) -> PublicKey:
    try:
        return PublicKey.from_pem(path.read_bytes())
    except FormatError as error:
        raise KeyFileError(f"{path} is not a PEM public key: {error}") from None
