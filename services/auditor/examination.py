"""The examination of one receipt: is it signed, is its content the committed one, does it replay?"""

from __future__ import annotations

import random
from collections.abc import Callable

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.errors import FormatError, LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.finding import Finding
from services.auditor.judge import Judge
from services.auditor.replays.replayer import Replayer

ContentReader = Callable[[str], Content | None]
"""The content of a receipt by its id; None where it was never kept or has been erased."""


class Examiner:
    """Examines receipts one by one. Nothing is remembered between two of them."""

    def __init__(
        self,
        trust: TrustedKeys,
        contents: ContentReader,
        replayer: Replayer,
        decode_share: float = 0.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`decode_share` and `chance` are those of `Judge`."""
        self._trust = trust
        self._contents = contents
        self._judge = Judge(replayer, decode_share, chance)

    def examine(self, envelope: Envelope, erased: str | None = None) -> Finding:
        """The checks in order; the first that fails is the finding. `erased` says which entry erased the content.

        1. The receipt is signed by a key trusted for receipts.
        2. Its content is there.
        3. The content is what the receipt commits to.
        4. It is computed again on the numerics profile that it names: the bits of another one say nothing about it.
        5. That gives the same tokens and the same stream digest as with speculation off. A deviation that was found
           along the record is decoded before it is believed.

        A receipt that claims a speedup above its tokens per pass is told in the reason; it changes no outcome.
        Raises ServiceAway, Interrupted, and KolmError where the ledger cannot be asked.
        """
        try:
            receipt = self._signed_receipt(envelope)
        except LedgerError as error:
            return Finding.unreplayable(f"the receipt is not what a trusted key signed: {error}", tampered=True)
        content = self._contents(receipt.receipt_id)
        if content is None:
            return Finding.unreplayable(erased or "the ledger keeps no content of it")
        try:
            content.check(receipt)
        except FormatError as error:
            return Finding.unreplayable(f"the content is not what the receipt commits to: {error}", tampered=True)
        finding = self._judge.judge(receipt, content)
        return finding if receipt.overclaim is None else finding.noting(f"the receipt {receipt.overclaim}")

    def _signed_receipt(self, envelope: Envelope) -> Receipt:
        document = open_document(envelope, self._trust)
        if not isinstance(document, Receipt):
            raise FormatError("payloadType", "expected a receipt")
        return document
