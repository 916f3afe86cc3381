"""A real ledger in this process, and auditors on it whose replays are scripted."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ledger.documents.audit import ReferencePass, Verdict
from ledger.documents.content import Content
from ledger.documents.halt import Scope
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.appender import Announcement, Appender, Terms
from services.auditor.audit_error import EngineAway, OutOfReach
from services.auditor.auditor import Auditor
from services.auditor.examination import Compared, Examiner, Finding, Replayed, Replayer
from services.auditor.held_folder import HeldFolder, Share
from services.auditor.serving import kept_backlog
from services.client.ledger.ledger import LedgerClient
from services.ledger.settings import LedgerSettings
from tests.access import trust_log
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.unit.ledger.builders import KEYS, ORIGIN, content, receipt, signed


class Replays:
    """An engine that decodes every receipt of the builders faithfully, except the ones set to lie or fail. It does
    not have the bases `elsewhere`.
    """

    ways = ("decode",)

    def __init__(self) -> None:
        self.lies: set[str] = set()
        self.elsewhere: set[str] = set()
        self.failure: Exception | None = None
        self.asked: list[str] = []

    def replay(self, receipt: Receipt, content: Content, way: str = "decode") -> Replayed:
        self.asked.append(receipt.receipt_id)
        if self.failure is not None:
            raise self.failure
        if receipt.base_cid in self.elsewhere:
            raise OutOfReach("base_cid: another one is loaded")
        tokens = content.output_token_ids
        if receipt.receipt_id in self.lies:
            tokens = (*tokens[:-1], 77)
        digest = receipt.output.stream_digest
        return Replayed(tokens, receipt.output.finish_reason, digest, receipt.profile_cid, 0.25, (0.5, 0.25))


class InterruptedAppender(Appender):
    """Dies between a verdict and its halt."""

    def halt(self, scope: Scope, verdict_index: int, reason: str) -> int:
        raise KeyboardInterrupt


class OneHaltAppender(Appender):
    """Dies between the two halts of a verdict."""

    def halt(self, scope: Scope, verdict_index: int, reason: str) -> int:
        if scope.method != "lookahead":
            raise KeyboardInterrupt
        return super().halt(scope, verdict_index, reason)


class OneVerdictAppender(Appender):
    """Dies between the two verdicts on a receipt."""

    def append(self, envelope: Envelope) -> int:
        index = super().append(envelope)
        if isinstance(read_document(envelope), Verdict):
            raise KeyboardInterrupt
        return index


class TwoChecks:
    """Judges another engine's receipts by both checks, and finds no fault."""

    def __init__(self) -> None:
        self.away: set[str] = set()

    def judge(self, receipt: Receipt, content: Content) -> tuple[Finding, ...]:
        if receipt.receipt_id in self.away:
            raise EngineAway("the engine is away")
        found = ReferencePass(receipt.base_cid, 0.0, 0.0, 0)
        return (
            Compared("SAME", 2, "again", "engine"),
            Compared("CONSISTENT", 2, "reference", "auditor", reference=found),
        )


@dataclass(slots=True)
class Deployment:
    """`ledger` talks to the served ledger as an auditor."""

    ledger: LedgerClient
    address: str
    trusted: Path
    replays: Replays
    folder: HeldFolder
    checks: TwoChecks = field(default_factory=TwoChecks)

    def receive(self, number: int, *, with_content: bool = True, **changes: Any) -> int:
        """Append the builders' `number`-th receipt, with `changes`; its index."""
        kept = content(number) if with_content else None
        return self.ledger.append(signed(receipt(number, **changes)), kept).index

    def auditor(
        self,
        terms: Terms | None = None,
        spot_checks: float = 1.0,
        appender: Callable[..., Appender] = Appender,
        replayer: Replayer | None = None,
        folder: HeldFolder | None = None,
        share: Share | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> Auditor:
        """A new auditor, with no state but the ledger's and the deployment's folder."""
        trust, folder = TrustedKeys.load(self.trusted), folder or self.folder
        backlog = kept_backlog(folder, self.ledger, trust, spot_checks)
        writes = appender(self.ledger, KEYS["auditor"], clock)
        return Auditor(
            self.ledger,
            backlog,
            Examiner(trust, self._content, replayer or self.replays, foreign=self.checks),
            writes,
            folder,
            Announcement(backlog, writes, folder, terms, draw_seconds=0.0),
            share or Share(),
            clock,
        )

    def _content(self, receipt_id: str) -> Content | None:
        return self.ledger.receipt(receipt_id, include_content=True).content


@contextmanager
def opened_deployment(directory: Path, others: Sequence[SigningKey] = (KEYS["operator"],)) -> Iterator[Deployment]:
    """With its ledger up; it trusts the builders' receipts and auditor, and `others`."""
    trusted = directory / "trusted"
    for key in (KEYS["receipts"], KEYS["auditor"], *others):
        key.publish(trusted)
    settings = trust_log(LedgerSettings(data_dir=directory, origin=ORIGIN))
    with (
        serving_ledger(settings) as (served, _),
        LedgerClient.connect(served.address, wait=60) as ledger,
        HeldFolder(directory / "auditor") as folder,
    ):
        yield Deployment(ledger, served.address, trusted, Replays(), folder)


def stopped_after(count: int) -> tuple[threading.Event, Callable[[object], None]]:
    """A stop, and a callback that sets it once it has been called `count` times."""
    stop, calls = threading.Event(), []

    def called(value: object) -> None:
        calls.append(value)
        if len(calls) == count:
            stop.set()

    return stop, called
