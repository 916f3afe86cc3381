"""What a person reads when a command fails: one line that names the field, one that says what to do."""

from __future__ import annotations

from ledger.errors import KeyFileError, LedgerError, NotFound, StoreError
from services.cli import exits
from services.cli.exits import CommandError
from services.client import errors as client

_CODES: tuple[tuple[type[client.KolmError], int], ...] = (
    (client.InvalidArgument, exits.USAGE),
    (client.NotFound, exits.NOT_FOUND),
    (client.DataLoss, exits.VERIFICATION_FAILED),
    (client.Unavailable, exits.UNAVAILABLE),
    (client.DeadlineExceeded, exits.UNAVAILABLE),
    (client.ResourceExhausted, exits.UNAVAILABLE),
)

_HINTS = {
    "SPEC_DECODE_HALTED": "`kolm halts list` shows why; `kolm halts resume` lifts it; --method off is served meanwhile",
    "LOSSY_ACCEPTANCE": "leave accept_threshold out: kolm never accepts a token that the target would not have chosen",
    "UNTRUSTED_SIGNATURE": "the ledger trusts the keys in its --trusted-keys directory; is it the one of --data-dir?",
}

_FLAGS = {
    "sampling.max_tokens": "--max-tokens",
    "sampling.temperature": "--temperature",
    "sampling.top_p": "--top-p",
    "sampling.top_k": "--top-k",
    "sampling.min_p": "--min-p",
    "sampling.seed": "--seed",
    "sampling.n": "--n",
    "sampling.stop": "--stop",
    "spec_decode.method": "--method",
    "spec_decode.k": "--k",
    "spec_decode.verify": "--verify",
    "spec_decode.eagle_head": "--eagle-head",
    "workload": "--workload",
    "model": "--model",
    "tenant": "--tenant",
    "request_id": "--request-id",
}


def as_command_error(error: Exception) -> CommandError | None:
    """The error for people; None for what is a bug and deserves its traceback."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, client.KolmError):
        return _of_server(error)
    if isinstance(error, NotFound):
        return exits.Missing(str(error))
    if isinstance(error, KeyFileError):
        return exits.UsageError(str(error))
    if isinstance(error, StoreError):
        return exits.Failed(str(error))
    if isinstance(error, LedgerError):
        return exits.VerificationFailed(str(error))
    return None


def _of_server(error: client.KolmError) -> CommandError:
    message = "; ".join(map(_violation, error.violations)) or error.message
    failure = CommandError(message, _hint(error))
    failure.exit_code = next((code for kind, code in _CODES if isinstance(error, kind)), exits.FAILED)
    return failure


def _violation(violation: client.FieldViolation) -> str:
    flag = _FLAGS.get(violation.field)
    return f"{violation.field}{f' ({flag})' if flag else ''}: {violation.description}"


def _hint(error: client.KolmError) -> str | None:
    if error.reason in _HINTS:
        return _HINTS[error.reason]
    if isinstance(error, client.Unavailable):
        return "is it running? `kolm up` starts all services, `kolm health` shows which answer"
    if isinstance(error, client.Internal) and error.request_id:
        return f"the server's log has it under request id {error.request_id}"
    if error.retry_after:
        return f"try again in {error.retry_after:g} s"
    return None
