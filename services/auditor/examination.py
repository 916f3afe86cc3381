"""The examination of one receipt: is it signed, is its content the committed one, does it replay?"""

from __future__ import annotations

from collections.abc import Callable

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.encoding.stream_digest import StreamDigest
from ledger.errors import FormatError, LedgerError
from ledger.keys.envelope import Envelope
from services.auditor.comparison import compare
from services.auditor.finding import Finding
from services.auditor.reloaded_keys import ReloadedKeys
from services.auditor.replayer import Replayer
from services.client.completion import Replayed
from services.client.errors import FailedPrecondition, Internal, InvalidArgument, KolmError, NotFound, Unimplemented

ContentReader = Callable[[str], Content | None]
"""The content of a receipt by its id; None where it was never kept or has been erased."""

_FINAL = (FailedPrecondition, InvalidArgument, NotFound, Unimplemented, Internal)
"""Errors about this receipt, rather than about the server or the caller."""


class Examiner:
    """Examines receipts one by one. Nothing is remembered between two of them."""

    def __init__(self, trust: ReloadedKeys, contents: ContentReader, replayer: Replayer) -> None:
        self._trust = trust
        self._contents = contents
        self._replayer = replayer

    def examine(self, envelope: Envelope, erased: str | None = None) -> Finding:
        """The checks in order; the first that fails is the finding. `erased` says which entry erased the content.

        1. The receipt is signed by a key trusted for receipts.
        2. Its content is there.
        3. The content is what the receipt commits to.
        4. It is decoded again on the numerics profile that it names: the bits of another one say nothing about it.
        5. Decoding with speculation off gives the same tokens and the same stream digest.

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
        return self._replay(receipt, content)

    def _signed_receipt(self, envelope: Envelope) -> Receipt:
        document = self._trust.open(envelope)
        if not isinstance(document, Receipt):
            raise FormatError("payloadType", "expected a receipt")
        return document

    def _replay(self, receipt: Receipt, content: Content) -> Finding:
        if not content.output_token_ids:
            return compare(receipt, (), _nothing(receipt)).noting("nothing had been emitted")
        try:
            replayed = self._replayer.replay(receipt, content)
        except _FINAL as error:
            return Finding.unreplayable(_why(error))
        if replayed.profile_cid != receipt.profile_cid:
            return Finding.unreplayable(_another_profile(receipt.profile_cid, replayed.profile_cid))
        return compare(receipt, content.output_token_ids, replayed)


def _nothing(receipt: Receipt) -> Replayed:
    """The replay of an output without tokens, which asks nobody."""
    return Replayed((), receipt.output.finish_reason, StreamDigest().hexdigest(), receipt.profile_cid, 0.0, ())


def _why(error: KolmError) -> str:
    return f"the generation service refuses the replay ({error.reason}): {error.message}"


def _another_profile(named: str, replayed: str) -> str:
    return f"the receipt names numerics profile {named}, the generation service replayed it on {replayed}"
