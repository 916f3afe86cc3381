"""`python -m benchmarks.ledger.kills`: kill a ledger service repeatedly while several clients append, then compare its
log with all answers: no acknowledged receipt may be missing, duplicated or at another index.

Nothing is timed. The exit code is 1 if a count of faults is not zero, or the log does not verify.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.ledger.service import STORES, LedgerLocation, opened, running, signed_receipts
from benchmarks.machine import Service
from ledger.audit.log_verification import verify_log
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.fsck import Depth, fsck
from ledger.log.store import entries_from
from ledger.sql.guard import SqlGuard
from ledger.sql.inspection import SqlInspection
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from services.client.errors import KolmError
from services.client.ledger.ledger import LedgerClient

_MOST_BEFORE_A_KILL = 40
"""Upper bound of the random number of answers that are awaited before a kill."""
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Account:
    """The result. `answers` counts acknowledgements, those of repeated receipts included; `acknowledged` and `logged`
    count receipts. `moved` receipts were acknowledged at two indexes, or at another index than in the log.
    """

    kills: int
    answers: int
    acknowledged: int
    logged: int
    lost: int
    doubled: int
    moved: int
    problem: str | None
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.moved or self.problem or self.findings)


class Appenders:
    """Threads that send each of their receipts until the service that runs acknowledges it."""

    def __init__(self, location: LedgerLocation, count: int) -> None:
        self.answers: list[tuple[str, int]] = []
        self._address: str | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._receipts = signed_receipts(location.key("receipts"))
        self._threads = [threading.Thread(target=self._append, name=f"appender-{number}") for number in range(count)]
        for thread in self._threads:
            thread.start()

    def served_at(self, address: str | None) -> None:
        with self._changed:
            self._address = address
            self._changed.notify_all()

    def wait_for(self, answers: int) -> None:
        """Wait until there are `answers` answers. Raises TimeoutError after `_PATIENCE` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.answers) >= answers, _PATIENCE):
                raise TimeoutError(f"{len(self.answers)} answers after {_PATIENCE:g} s, expected {answers}")

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _append(self) -> None:
        while not self._closing:
            with self._changed:
                receipt, envelope, kept = next(self._receipts)
            content = Content(kept.prompt_salt, kept.prompt_token_ids, kept.output_salt, kept.output_token_ids)
            again = random.random() < 0.1  # as a caller does whose answer was lost
            while not self._closing and not self._acknowledged(receipt.receipt_id, envelope, content, again=again):
                pass

    def _acknowledged(self, receipt_id: str, envelope: bytes, content: Content, *, again: bool) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._address is not None or self._closing)
            address = self._address
        if address is None:
            return False
        try:
            with LedgerClient.connect(address) as client:
                for _ in range(1 + again):
                    index = client.append(envelope, content).index
                    with self._changed:
                        self.answers.append((receipt_id, index))
                        self._changed.notify_all()
        except KolmError:
            return False
        return True


@contextmanager
def _served(location: LedgerLocation, appenders: Appenders) -> Iterator[Service]:
    with running(location) as service:
        appenders.served_at(service.address)
        try:
            yield service
        finally:
            appenders.served_at(None)


def killed_and_counted(location: LedgerLocation, kills: int, appenders: int) -> Account:
    """Kill the location's service `kills` times, start it once more, and compare the log with all answers."""
    sending = Appenders(location, appenders)
    try:
        for _ in range(kills):
            with _served(location, sending) as service:
                sending.wait_for(len(sending.answers) + random.randint(1, _MOST_BEFORE_A_KILL))
                os.kill(service.process, signal.SIGKILL)
        with _served(location, sending):
            sending.wait_for(len(sending.answers) + appenders)
    finally:
        sending.close()
    return _accounted(location, kills, sending.answers)


def _accounted(location: LedgerLocation, kills: int, answers: list[tuple[str, int]]) -> Account:
    keys = location.folder / "content-keys/keys.sqlite3"
    with closing(SqlEntryStore.open_for_reading(location.database, keys)) as store:
        entries = list(entries_from(store))
        report = verify_log(entries, store.latest_checkpoint(), location.trusted())
        places: dict[str, list[int]] = {}
        for index, data in enumerate(entries):
            document = read_document(Entry.from_bytes(data).envelope)
            if isinstance(document, Receipt):
                places.setdefault(document.receipt_id, []).append(index)
        without_content = sum(store.content(index) is None for indexes in places.values() for index in indexes)
    acknowledged: dict[str, set[int]] = {}
    for receipt_id, index in answers:
        acknowledged.setdefault(receipt_id, set()).add(index)
    moved = sum(places.get(name, [*indexes]) != [*indexes] for name, indexes in acknowledged.items())
    findings = [str(each) for each in _checked(location, keys)]
    if without_content:
        findings.append(f"{without_content} receipts have no content")
    return Account(
        kills=kills,
        answers=len(answers),
        acknowledged=len(acknowledged),
        logged=len(places),
        lost=sum(name not in places for name in acknowledged),
        doubled=sum(len(indexes) > 1 for indexes in places.values()),
        moved=moved,
        problem=report.problem,
        findings=tuple(findings),
    )


def _checked(location: LedgerLocation, keys: Path) -> list[object]:
    """The findings of the deep check."""
    with closing(SqlGuard.open_for_reading(location.folder / "guard.sqlite3")) as guard:
        guarded = guard.heads()
    with closing(SqlInspection.open(location.database, keys)) as inspection:
        return [*fsck(inspection, location.trusted(), Depth.DEEP, guarded=guarded).findings]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="times that the service is killed (40)")
    parser.add_argument("--appenders", type=int, default=4, help="concurrent callers (4)")
    parser.add_argument("--store", choices=STORES, default=STORES[0], help=f"store of the log ({STORES[0]})")
    arguments = parser.parse_args()
    with opened(arguments.store, None) as locations:
        account = killed_and_counted(locations.location("kills"), arguments.kills, arguments.appenders)
    print(json.dumps(asdict(account) | {"ok": account.ok}, indent=1))
    sys.exit(0 if account.ok else 1)


if __name__ == "__main__":
    main()
