"""The registry's way into the ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from ledger.audit.log_verification import verify_appended
from ledger.documents.key_history import KeyHistory
from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from services.client import LedgerClient
from services.client import errors as client
from services.registry.errors import BadDocument, UntrustedSignature
from services.runtime.errors import Unavailable

_log = logging.getLogger(__name__)


class Log(Protocol):
    """The log that signed documents are appended to."""

    def append(self, envelope: bytes) -> int:
        """The index of the entry; the same envelope again gets the same one.

        Raises UntrustedSignature, BadDocument where the log will never take it, Unavailable (LEDGER_UNAVAILABLE)
        where it may at another time.
        """
        ...

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        """Which publishers' keys others have replaced: ids of the old and of the new one, in the order of the log.

        Raises Unavailable (LEDGER_UNAVAILABLE).
        """
        ...


class LedgerLog:
    """A ledger service whose answers are checked: an entry counts once its signed tree holds it."""

    def __init__(self, ledger: LedgerClient, trusted: TrustedKeys) -> None:
        self._ledger = ledger
        self._trusted = trusted

    def append(self, envelope: bytes) -> int:
        try:
            appended = self._ledger.append(envelope)
            entry = self._ledger.entry(appended.index).entry
        except client.InvalidArgument as error:
            if error.reason == "UNTRUSTED_SIGNATURE":
                raise UntrustedSignature(f"the ledger does not trust this publisher: {error.message}") from error
            raise BadDocument(f"the ledger does not take it: {error.message}") from error
        except client.KolmError as error:
            raise _unavailable(f"the ledger does not answer: {error.message}") from error
        try:
            verify_appended(
                envelope,
                entry,
                appended.inclusion_proof.hashes,
                appended.checkpoint,
                self._trusted.keys("log"),
            )
        except LedgerError as error:
            _log.error("the ledger's answer does not hold; is its key among the trusted ones? %s", error)
            raise _unavailable("the ledger's proof does not hold under the keys that this registry trusts") from error
        return appended.index

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        """A ledger cannot make one up: the old key has signed it, or operators have."""
        try:
            with self._ledger.watch(kinds=["key"]) as entries:
                history = KeyHistory.of(self._trusted).following((entry.index, entry.envelope) for entry in entries)
        except client.KolmError as error:
            raise _unavailable(f"the ledger does not say whose keys were replaced: {error.message}") from error
        return [(each.old, each.new.key_id) for each in history.rotations if each.role == "publisher"]


def _unavailable(message: str) -> Unavailable:
    return Unavailable(f"{message}; nothing is published without it", retry_after=5.0, reason="LEDGER_UNAVAILABLE")
