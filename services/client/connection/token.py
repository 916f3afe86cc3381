"""The token that a client shows to servers: the one it was given, or that of the process.

A process has one identity, in KOLM_TOKEN (the token itself, empty for none) or KOLM_TOKEN_FILE (a file that holds it).
Without either, a server on this machine is shown the token that was left for its port in the user's own folder, by the
server itself or by `kolm up`; else the one of the owner, in the folder of `kolm up`.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import unquote

from services.client.errors import Unauthenticated

TOKEN, TOKEN_FILE, DATA_DIR = "KOLM_TOKEN", "KOLM_TOKEN_FILE", "KOLM_DATA_DIR"

_DATA_DIR = ".kolm"
_OWNERS = Path("tokens", "owner")

Metadata = tuple[tuple[str, str], ...]


def credentials(target: str, token: str | None) -> Metadata:
    """The metadata of calls to `target`: `token`, none if it is empty, or the process's where it is None.

    Files are read each time, so that a new token counts without a restart. Raises Unauthenticated for a file that
    cannot be read.
    """
    shown = _of_process(target) if token is None else token
    return (("authorization", f"Bearer {shown}"),) if shown else ()


def show(token: str | None, file: Path | None) -> None:
    """Makes this what the process shows from now on: a token, or the one in a file."""
    os.environ.pop(TOKEN, None)
    os.environ.pop(TOKEN_FILE, None)
    if token is not None:
        os.environ[TOKEN] = token
    elif file is not None:
        os.environ[TOKEN_FILE] = str(file.resolve())


def _of_process(target: str) -> str:
    if TOKEN in os.environ:
        return os.environ[TOKEN]
    if file := os.environ.get(TOKEN_FILE):
        return _read(Path(file))
    if not is_here(target):
        return ""
    left = (token_of_port(target), Path(os.environ.get(DATA_DIR) or _DATA_DIR) / _OWNERS)
    return next((_read(file) for file in left if file is not None and file.is_file()), "")


def token_of_port(address: str) -> Path | None:
    """Where a user's clients look for the token of the server that listens on the port of `address` on this machine;
    None for an address without a port, and for a user without a home.
    """
    port = address.rpartition(":")[2]
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return state / "kolm" / "ports" / port if port.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds other characters than a token has"
        raise Unauthenticated(f"cannot read the token in {file}: {why}", reason="BAD_TOKEN_FILE") from None


def is_here(target: str) -> bool:
    """Whether a target is on this machine for certain: a token that was found by chance is sent nowhere else."""
    if target.startswith("unix:"):
        return True
    place = unquote(target.rpartition("/")[2]).removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:")
    host = place.rpartition(":")[0].strip("[]") or place
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
