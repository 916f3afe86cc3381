"""The keys whose signatures count for the auditor."""

from __future__ import annotations

from collections.abc import Callable

from ledger.documents.signed_document import Document, open_document
from ledger.errors import SignatureError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys


class ReloadedKeys:
    """Trusted keys, read again before a signature is refused: services publish theirs as they start, in any order."""

    def __init__(self, load: Callable[[], TrustedKeys]) -> None:
        """`load` reads the keys; may raise KeyFileError."""
        self._load = load
        self._keys = load()

    def open(self, envelope: Envelope) -> Document:
        """The document, if keys that may sign its kind have signed it. Raises FormatError, SignatureError,
        KeyFileError.
        """
        try:
            return open_document(envelope, self._keys)
        except SignatureError:
            self._keys = self._load()
            return open_document(envelope, self._keys)
