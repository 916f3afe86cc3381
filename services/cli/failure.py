"""Errors as people read them: one line that names the field, one that says what to do."""

from __future__ import annotations

import sys

from ledger.errors import KeyFileError, LedgerError, NotFound, StoreError
from services.cli import exits
from services.cli.exits import CommandError

_EXTRAS = {
    **dict.fromkeys(("grpc", "google", "sqlalchemy", "alembic", "pydantic_settings"), "kolm-serve[cli]"),
    "cbor2": "kolm-serve[verify]",
    "starlette": "kolm-serve[web]",
    "uvicorn": "kolm-serve[web]",
    "obstore": "kolm-serve[registry]",
    "pyarrow": "kolm-serve[parquet]",
    "torch": "kolm-serve[generation]",
    "numpy": "kolm-serve[generation]",
    "transformers": "kolm-serve[generation]",
}
"""The extra that installs each optional package; `kolm-serve[verify]` alone runs `kolm verify` and little else."""


def explain(error: Exception) -> int:
    """Print what went wrong; returns the exit code. Raises `error` again if it is a bug."""
    from services.cli.steering import printable

    failure = as_command_error(error)
    if failure is None:
        raise error
    print(f"kolm: {printable(failure.message)}", file=sys.stderr)
    if failure.hint:
        print(f"      {printable(failure.hint)}", file=sys.stderr)
    return failure.exit_code


def as_command_error(error: Exception) -> CommandError | None:
    """The error for people; None for a bug, which needs its traceback."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in _EXTRAS:
        return exits.UsageError(f"this needs {missing}, which is not installed", f"pip install '{_EXTRAS[missing]}'")
    if "services.client.errors" in sys.modules:  # else no server was called, and importing the client would need grpc
        from services.cli.server_failure import of_server
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
    return None
