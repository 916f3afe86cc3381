"""An auditor process with scripted replays: `python -m tests.integration.auditor.worker LEDGER TRUSTED FOLDER [hang]`.

Prints `examining N` for each receipt before its examination; with `hang` the first examination never ends.
"""

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.appender import Announcement, Appender
from services.auditor.auditor import Auditor
from services.auditor.backlog import Backlog
from services.auditor.examination import Examiner, Replayed
from services.auditor.held_folder import HeldFolder
from services.auditor.serving import follow
from services.client.ledger.ledger import LedgerClient
from tests.unit.ledger.builders import KEYS


class HangingReplays:
    """Decodes every receipt faithfully, if it decodes at all."""

    ways = ("decode",)

    def __init__(self, ledger: LedgerClient, hang: bool) -> None:
        self._ledger = ledger
        self._hang = hang

    def replay(self, receipt: Receipt, content: Content, way: str = "decode") -> Replayed:
        index = self._ledger.receipt(receipt.receipt_id).receipt.index
        print(f"examining {index}", flush=True)
        if self._hang:
            threading.Event().wait()
        digest, tokens = receipt.output.stream_digest, content.output_token_ids
        return Replayed(tokens, receipt.output.finish_reason, digest, receipt.profile_cid, 0.25, (0.5, 0.25))


def main(address: str, trusted: str, folder: str, hang: str = "") -> None:
    trust = TrustedKeys.load(Path(trusted))
    with LedgerClient.connect(address, wait=60) as ledger, HeldFolder(Path(folder), max_attempts=2) as held:

        def content(receipt_id: str) -> Content | None:
            return ledger.receipt(receipt_id, include_content=True).content

        backlog = Backlog(trust)
        appender = Appender(ledger, KEYS["auditor"], lambda: datetime.now(UTC))
        auditor = Auditor(
            ledger,
            backlog,
            Examiner(trust, content, HangingReplays(ledger, bool(hang))),
            appender,
            held,
            Announcement(backlog, appender, held, None, draw_seconds=0.0),
        )
        follow(auditor, threading.Event(), 0.05, lambda _: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
