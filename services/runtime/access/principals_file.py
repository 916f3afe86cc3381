"""The file of principals: credentials of everybody who may call, without the secrets themselves."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.runtime.access.credential import Credential

_OTHERS_WRITE = 0o022


class PrincipalsError(Exception):
    """The file cannot be used; the message says why, and holds nothing of what stands in it."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["kolm.principals.v1"] = "kolm.principals.v1"
    credentials: tuple[Credential, ...] = ()


def read_principals(path: Path) -> tuple[Credential, ...]:
    """Every credential, also expired ones. Raises PrincipalsError, also where others than the owner may write it."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise PrincipalsError(f"cannot read the principals: {error.strerror} ({path})") from None
    if mode & _OTHERS_WRITE:
        raise PrincipalsError(f"others than its owner may write {path}, so it is not believed: chmod go-w {path}")
    try:
        return _checked(_Document.model_validate_json(data).credentials)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise PrincipalsError(f"{path} is no file of principals: {where}: {first['msg']}") from None
    except ValueError as error:
        raise PrincipalsError(f"{path}: {error}") from None


def write_principals(path: Path, credentials: Sequence[Credential]) -> None:
    """Replaces the file in one step; nobody but its owner can read it. Raises OSError."""
    document = _Document(credentials=_checked(tuple(credentials)))
    write_private(path, document.model_dump_json(indent=1, exclude_defaults=False) + "\n")


@contextmanager
def edited_principals(path: Path) -> Iterator[list[Credential]]:
    """The credentials to change, none where there is no file yet; written at the end of the block if they changed.

    Edits of several processes come one after another. Raises PrincipalsError, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_principals(path) if path.exists() else None
        credentials = list(before or ())
        yield credentials
        if tuple(credentials) != before:
            write_principals(path, credentials)


def write_private(path: Path, text: str) -> None:
    """Replaces a file in one step by one of mode 0600, in a folder made with mode 0700. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checked(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
    ids = [each.id for each in credentials]
    twice = next((each for each in ids if ids.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"the credential {twice} stands there twice")
    return credentials
