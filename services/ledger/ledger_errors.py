"""Conversion of LedgerError to the errors that callers see, without the database's messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ledger.errors import (
    Backpressure,
    BundleTooLarge,
    ChainError,
    ClockAhead,
    Conflict,
    ContentDamaged,
    FormatError,
    LedgerError,
    NotFound,
    ProofError,
    SignatureError,
    SignaturesMissing,
    SignerUnavailable,
    Stopped,
    StoreDamaged,
    StoreError,
)
from services.runtime import errors

_log = logging.getLogger(__name__)


@contextmanager
def ledger_errors(resource: str, name: str) -> Iterator[None]:
    """Convert every LedgerError in the block; `resource` and `name` describe the call's object (`entry`, `7`)."""
    try:
        yield
    except LedgerError as error:
        raise to_kolm_error(error, resource, name) from error


def to_kolm_error(error: LedgerError, resource: str, name: str) -> errors.KolmError:
    """The error that the caller gets for `error`."""
    match error:
        case ClockAhead():
            return errors.InvalidArgument("envelope", str(error), reason="CLOCK_AHEAD")
        case BundleTooLarge():
            return errors.InvalidArgument("end_index", str(error), reason="BUNDLE_TOO_LARGE")
        case FormatError():
            return _bad_document(error)
        case SignaturesMissing():
            return errors.InvalidArgument("envelope", str(error), reason="SIGNATURES_MISSING")
        case SignatureError():
            return errors.InvalidArgument("envelope", str(error), reason="UNTRUSTED_SIGNATURE")
        case Conflict():
            return errors.AlreadyExists(resource, name, str(error))
        case NotFound() | ProofError():
            return errors.NotFound(resource, name)
        case Backpressure():
            return errors.ResourceExhausted(str(error), retry_after=error.retry_after)
        case Stopped():
            return errors.Unavailable(str(error), reason="LEDGER_STOPPED")
        case ChainError():
            _log.error("the log contradicts itself", exc_info=error)
            return errors.DataLoss(f"the log contradicts itself: {error}")
        case SignerUnavailable():
            _log.error("reaching no signing key of the log: %s", error)
            return errors.Unavailable("the log's signing key cannot be reached; send it again", reason="SIGNER_AWAY")
        case ContentDamaged():
            _log.error("%s", error)
            return errors.DataLoss(str(error), reason="CONTENT_DAMAGED")
        case StoreDamaged():
            _log.error("the database is damaged", exc_info=error)
            return _store_failed()
        case StoreError():  # logged by writers and readers, when it begins and ends
            return _store_failed()
        case _:
            _log.error("unexpected ledger error", exc_info=error)
            return errors.Internal()


def _store_failed() -> errors.KolmError:
    return errors.Unavailable("the ledger's database failed; send it again", reason="STORE_FAILED")


def _bad_document(error: FormatError) -> errors.InvalidArgument:
    """The path of a field in the request: content by its own field (also a bare salt or token_ids), others within the
    envelope.
    """
    if error.field.startswith("content") or error.field in ("salt", "token_ids"):
        field = error.field if error.field.startswith("content") else f"content.{error.field}"
        return errors.InvalidArgument(field, error.problem, reason="BAD_CONTENT")
    problem = error.problem if error.field == "envelope" else str(error)
    return errors.InvalidArgument("envelope", problem, reason="BAD_DOCUMENT")
