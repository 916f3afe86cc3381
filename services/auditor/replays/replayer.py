"""The protocol of replayers, which compute a receipted request again."""

from __future__ import annotations

from typing import Protocol

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.verdict import DECODE
from services.client.generation.completion import Replayed


class Replayer(Protocol):
    """Computes a receipted request again, one at a time.

    `by` is what verdicts call it, one of `verdict.REPLAYERS`. `ways` are those of `verdict.VERIFICATIONS` that it
    knows, the cheapest first; DECODE is always among them.
    """

    by: str
    ways: tuple[str, ...]

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        """The stream: by PREFILL along the recorded output, up to the first token that is not the recorded one; by
        DECODE all of it, with speculation off.

        Raises CannotReplay or KolmError where this receipt has none, ServiceAway, Interrupted.
        """
        ...
