"""A server's error for people: the field with its flag, and what to do."""

from __future__ import annotations

import re

from services.cli.failures import exits
from services.cli.failures.exits import CommandError
from services.cli.failures.fallbacks import FALLBACKS
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
    "LOSSY_ACCEPTANCE": "leave accept_threshold out: kolm accepts only tokens that the target would have chosen",
    "UNTRUSTED_SIGNATURE": (
        "the ledger trusts the keys in its --trusted-keys directory; is it the one of --data-dir? A ledger that runs "
        "takes another key of a role at its next start"
    ),
}

_NO_SERVER = (
    re.compile(
        r"last error: \w+: (?:ipv[46]:)?(?P<address>\S+:\d+): (?:Failed to connect to remote host: )?(?P<why>.+)"
    ),
    re.compile(r"address lookup failed for (?P<address>\S+): (?P<why>[^\]]+)"),
)
_NO_METHOD = "Method not found!"

_FIELDS = (
    *(
        f"sampling.{name}"
        for name in ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n")
    ),
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


def of_server(error: client.KolmError) -> CommandError:
    """The exit code is that of the error's kind."""
    message = "; ".join(map(_violation, error.violations)) or _plain(error.message)
    failure = CommandError(message, _hint(error))
    failure.exit_code = next((code for kind, code in _CODES if isinstance(error, kind)), exits.FAILED)
    return failure


def _plain(message: str) -> str:
    """Without gRPC's own words for a server that is not there, or is another one."""
    if message == _NO_METHOD:
        return "the server that was asked is of another kind, or older"
    found = next(filter(None, (pattern.search(message) for pattern in _NO_SERVER)), None)
    return message if found is None else f"no server at {found['address']}: {found['why'].lower()}"


def _violation(violation: client.FieldViolation) -> str:
    return f"{_FLAGS.get(violation.field, violation.field)}: {violation.description}"


def _hint(error: client.KolmError) -> str | None:
    if error.reason in ("METHOD_NOT_LOADED", "METHOD_CANNOT_RUN"):
        fallback = FALLBACKS.get(error.metadata.get("missing", ""))
        return None if fallback is None else f"{fallback.sentence}: {fallback.remedy}"
    if error.reason in _HINTS:
        return _HINTS[error.reason]
    if isinstance(error, client.Unavailable):
        return "is it running? `kolm up` starts all services, `kolm status` shows which answer"
    if error.message == _NO_METHOD:
        return "is its address that of another service? `kolm status` shows which answers where"
    if isinstance(error, client.DeadlineExceeded):
        return "`kolm status` shows which services answer"
    if isinstance(error, client.Internal) and error.request_id:
        return f"the server's log has it under request id {error.request_id}"
    if error.retry_after:
        return f"try again in {error.retry_after:g} s"
    return None
