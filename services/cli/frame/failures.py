"""Errors as exit codes and as lines for people: the problem, with the flag's name, and a remedy."""

from __future__ import annotations

import errno
import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ledger.errors import KeyFileError, LedgerError, NotFound, StoreError
from services.cli.frame import exits
from services.cli.frame.exits import CommandError
from services.cli.frame.options import ADDRESS_FILES
from services.cli.frame.process import print_error, printable
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from services.client.errors import FieldViolation, KolmError

_OF_SERVERS = (
    "grpc", "grpc_health", "grpc_reflection", "grpc_status", "google", "sqlalchemy", "pydantic",
    "pydantic_core", "pydantic_settings", "prometheus_client",
)  # fmt: skip
_OF_THE_ENGINE = (
    "numpy", "numba", "llvmlite", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub", "llguidance",
    "h11", "httpx2", "jinja2", "pydivsufsort", "faiss", "regex",
)  # fmt: skip
EXTRAS = {
    **dict.fromkeys(_OF_SERVERS, "cli"),
    **dict.fromkeys(_OF_THE_ENGINE, "generation"),
    "torch": "training",
    "pyopencl": "gpu",
    "cuda": "gpu",
    "opentelemetry": "otel",
    "starlette": "web",
    "uvicorn": "web",
    "obstore": "s3",
    "psycopg": "postgres",
    "pkcs11": "pkcs11",
}
"""The extra that installs each optional package; kolm-verify has all others."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to stdout, a file or a terminal; an error in a named file has that name."""


_SERVICE_MODULES = tuple(
    f"services.{name}"
    for name in ("generation", "ledger", "auditor", "registry", "explorer", "http", "witness", "training", "datastores")
)
"""Modules of the services themselves, which the extra `all` installs; `cli` has the clients."""

FALLBACKS = {
    "no_head": "no draft head is loaded for this model. kolm heads train makes one, for kolm up --head; a smaller "
    "model (kolm up --draft-model) and a datastore (kolm datastore build, kolm up --shared-datastore) draft as well",
    "no_datastore": "no datastore is loaded; kolm datastore build, then kolm up --shared-datastore DIR",
    "no_draft_model": "no smaller model is loaded; kolm up --draft-model DIR",
    "head_withdrawn": "its publisher has withdrawn the head; kolm heads list shows others",
    "head_needs_retraining": "too few of the head's drafts hold with this adapter; kolm heads train; "
    "--method eagle3 drafts with it anyway",
    "temperature": "drafts hardly ever hold at this temperature; lower --temperature, or raise the server's "
    "--speculation-max-temperature",
    "profile_unproven": "this machine's numerics failed their probe, so nothing may draft; kolm doctor names what "
    "differs",
    "logit_bias": "the engine behind this server does not speculate with it; leave it out",
    "min_p": "the engine behind this server does not speculate with it; leave --min-p out",
    "halt_state_unknown": "the server has no recent list of halts from the ledger; kolm status shows whether the "
    "ledger answers",
    "halted": "an audit has halted it, or a replay of the server's own, which reaches the ledger with the next audit; "
    "kolm halts list shows why, kolm halts resume lifts it",
    "away": "the server at --url, which speculates, does not answer, so --plain-url answered; restart it",
    "not_loaded": "no method is loaded; kolm status shows which there are",
}
"""Explanation and remedy by reason, as receipts have it (`spec_decode.fallback_reason`)."""

_HINTS = {
    "SPEC_DECODE_HALTED": "`kolm halts list` shows why; `kolm halts resume` lifts it; --method off is served meanwhile",
    "LOSSY_ACCEPTANCE": "leave accept_threshold out: kolm accepts only tokens that the target would have chosen",
    "UNTRUSTED_SIGNATURE": (
        "the ledger trusts the keys in its --trusted-keys folder; is that the folder in --data-dir? A running ledger "
        "takes another key of a role at its next start"
    ),
    "CLOCK_AHEAD": "compare `date -u` here and on the ledger's machine, set the wrong clock, and run this again",
}

_NO_SERVER = (
    re.compile(
        r"last error: \w+: (?:ipv[46]:)?(?P<address>\S+:\d+): (?:Failed to connect to remote host: )?(?P<why>.+)"
    ),
    re.compile(r"address lookup failed for (?P<address>\S+): (?P<why>[^\]]+)"),
)
_NO_METHOD = "Method not found!"

_SAMPLING = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n")
_FIELDS = (
    *(f"sampling.{name}" for name in _SAMPLING),
    *(f"sampling.{name}_penalty" for name in ("presence", "frequency", "repetition")),
    *("sampling.stop", "sampling.logprobs", "sampling.ignore_eos"),
    *(f"spec_decode.{name}" for name in ("method", "k", "verify", "eagle_head")),
    *("workload", "model", "tenant", "request_id", "outcome", "commitment", "older_than"),
)
_FLAGS = {field: f"--{field.rpartition('.')[2].replace('_', '-')}" for field in _FIELDS} | {
    "spec_decode.parameters": "--parameter",
    "sampling.structured_outputs.json": "--json-schema",
    **{f"sampling.structured_outputs.{kind}": f"--{kind}" for kind in ("regex", "choice", "grammar")},
    "base_cid": "--base",
    "start_time": "--since",
    "end_time": "--until",
}
"""The flag that sets a field of a request."""


def explain(error: Exception) -> int:
    """Print what went wrong; returns the exit code. Raises `error` again if it is a bug."""
    failure = as_command_error(error)
    if failure is None:
        raise error
    print_error(f"kolm: {printable(failure.message)}")
    if failure.hint:
        print_error(f"      {printable(failure.hint)}")
    return failure.exit_code


def as_command_error(error: Exception) -> CommandError | None:
    """The error for people; None for a bug, which needs its traceback."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, ImportError):
        return _not_installed(error)
    if "services.client.errors" in sys.modules:  # else no server was called, and importing the client would need grpc
        from services.client.errors import KolmError

        if isinstance(error, KolmError):
            return of_server(error)
    if isinstance(error, NotFound):
        return exits.NotFound(str(error))
    if isinstance(error, KeyFileError | TargetError):
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
    """The command that installs an optional package, or the part of kolm that kolm-verify lacks; None for neither."""
    module = error.name or ""
    package = module.partition(".")[0]
    if package in EXTRAS and isinstance(error, ModuleNotFoundError):
        return exits.UsageError(f"this needs {package}, which is not installed", exits.brought_by(EXTRAS[package]))
    if package in ("services", "ledger") and find_spec("services.ledger") is None:
        extra = "all" if module.startswith(_SERVICE_MODULES) else "cli"
        return exits.UsageError(f"this needs {module}, which kolm-verify leaves out", exits.brought_by(extra))
    return None


def explained(reason: str | None) -> str | None:
    """A line for people; None without a reason, and for a reason that only a newer server has."""
    found = FALLBACKS.get(reason or "")
    return None if found is None else f"{reason}: {found}"


def of_server(error: KolmError) -> CommandError:
    """The error for people, with the exit code of its kind."""
    from services.client import errors as client

    codes = {
        client.InvalidArgument: exits.USAGE,
        client.NotFound: exits.NOT_FOUND,
        client.DataLoss: exits.VERIFICATION_FAILED,
        client.Unavailable: exits.UNAVAILABLE,
        client.DeadlineExceeded: exits.UNAVAILABLE,
        client.ResourceExhausted: exits.UNAVAILABLE,
    }
    message = "; ".join(map(_violation, error.violations)) or _plain(error.message)
    failure = CommandError(message, _hint(error))
    failure.exit_code = next((code for kind, code in codes.items() if isinstance(error, kind)), exits.FAILED)
    return failure


def _plain(message: str) -> str:
    """The message, without gRPC's words for a server that is missing or of another kind."""
    if message == _NO_METHOD:
        return "the server that was asked is of another kind, or older"
    found = next(filter(None, (pattern.search(message) for pattern in _NO_SERVER)), None)
    return message if found is None else f"no server at {found['address']}: {found['why'].lower()}"


def _violation(violation: FieldViolation) -> str:
    return f"{_FLAGS.get(violation.field, violation.field)}: {violation.description}"


def _hint(error: KolmError) -> str | None:
    from services.client import errors as client

    if error.reason in ("METHOD_NOT_LOADED", "METHOD_CANNOT_RUN"):
        return FALLBACKS.get(error.metadata.get("missing", ""))
    if error.reason in _HINTS:
        return _HINTS[error.reason]
    if isinstance(error, client.Unavailable):
        if (place := _NO_SERVER[0].search(error.message)) and (file := ADDRESS_FILES.get(place["address"])):
            return f"{file} names it: does that `kolm up` still run? `--{file.stem} HOST:PORT` names another server"
        return "is it running? `kolm up` starts all services, `kolm status` shows which answer"
    if error.message == _NO_METHOD:
        return "is this the address of another service? `kolm status` shows the services by address"
    if isinstance(error, client.DeadlineExceeded):
        return "`kolm status` shows which services answer"
    if isinstance(error, client.Internal) and error.request_id:
        return f"the server's log has it under request id {error.request_id}"
    if error.retry_after:
        return f"try again in {error.retry_after:g} s"
    return None
