"""Key files on disk, written atomically; private ones are readable by their owner alone."""

from __future__ import annotations

from pathlib import Path

from ledger.durable_file import create_durably
from ledger.errors import KeyFileError


def create_private_file(path: Path, data: bytes) -> bool:
    """Create `path` with mode 0600, and its folder if missing with 0700. Returns False if `path` exists.

    The data is complete and on disk before the name appears, so a crash leaves no file or a complete file, and perhaps
    an unused draft.
    """
    return _create(path, data, file_mode=0o600, folder_mode=0o700)


def write_public_file(path: Path, data: bytes) -> None:
    """Create `path`, readable for all. Raises KeyFileError if it exists with other bytes."""
    if not _create(path, data, file_mode=0o644, folder_mode=0o755) and path.read_bytes() != data:
        raise KeyFileError(f"{path} is there already and holds another key")


def publish_key(pem: bytes, key_id: str, role: str, directory: Path) -> Path:
    """Write a public key into a directory of trusted keys, under its role and id. Raises KeyFileError."""
    path = directory / f"{role}-{key_id.removeprefix('ed25519:')[:16]}.pub"
    write_public_file(path, pem)
    return path


def _create(path: Path, data: bytes, file_mode: int, folder_mode: int) -> bool:
    if path.exists():  # checked first: a draft needs room on the disk
        return False
    try:
        create_durably(path, data, file_mode, folder_mode)
    except FileExistsError:
        return False
    except OSError as error:
        raise KeyFileError(f"cannot create {path}: {error.strerror}") from None
    return True
