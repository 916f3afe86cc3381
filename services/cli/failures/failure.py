"""Errors as people read them: one line that names the field, one that says what to do."""

from __future__ import annotations

import errno
import sys
from importlib.util import find_spec

from ledger.errors import KeyFileError, LedgerError, NotFound, StoreError
from services.cli.failures import exits
from services.cli.failures.exits import CommandError
from services.cli.terminal.streams import discard_stdout

_EXTRAS = {
    **dict.fromkeys(("grpc", "google", "sqlalchemy", "alembic", "pydantic_settings", "cbor2"), "cli"),
    "starlette": "web",
    "uvicorn": "web",
    "obstore": "registry",
    "torch": "generation",
    "numpy": "generation",
    "transformers": "generation",
}
"""The extra that installs each optional package."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The reason that stdout cannot be written, where it is a file or a terminal; an error in a named file has its name."""


def explain(error: Exception) -> int:
    """Print what went wrong; returns the exit code. Raises `error` again if it is a bug."""
    from services.cli.terminal.steering import printable

    failure = as_command_error(error)
    if failure is None:
        raise error
    if isinstance(error, OSError):
        discard_stdout()  # or it would fail once more, at the interpreter's end
    print(f"kolm: {printable(failure.message)}", file=sys.stderr)
    if failure.hint:
        print(f"      {printable(failure.hint)}", file=sys.stderr)
    return failure.exit_code


def as_command_error(error: Exception) -> CommandError | None:
    """The error for people; None for a bug, which needs its traceback."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, ImportError):
        return _not_installed(error)
    if "services.client.errors" in sys.modules:  # else no server was called, and importing the client would need grpc
        from services.cli.failures.server_failure import of_server
        from services.client.errors import KolmError

        if isinstance(error, KolmError):
            return of_server(error)
    if isinstance(error, NotFound):
        return exits.Missing(str(error))
    if isinstance(error, KeyFileError):
        return exits.UsageError(str(error))
    if isinstance(error, StoreError):
        return exits.Failed(str(error))
    if isinstance(error, LedgerError):
        return exits.VerificationFailed(str(error))
    if isinstance(error, OSError) and error.filename is not None:  # a folder that is a file, or that we may not write
        return exits.Failed(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return exits.Failed(f"cannot write the output: {error.strerror}")
    return None


def _not_installed(error: ImportError) -> CommandError | None:
    """How to install an optional package, or a part of kolm where only kolm-verify is installed; None for neither."""
    module = error.name or ""
    package = module.partition(".")[0]
    if package in _EXTRAS and isinstance(error, ModuleNotFoundError):
        return exits.UsageError(f"this needs {package}, which is not installed", exits.brought_by(_EXTRAS[package]))
    if package in ("services", "ledger") and find_spec("services.ledger") is None:
        return exits.UsageError(f"this needs {module}, which kolm-verify leaves out", exits.brought_by("cli"))
    return None
