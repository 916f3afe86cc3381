"""A sequencer over a store that forgets nothing, and the check of all that it wrote."""

from concurrent.futures import Future
from typing import Any, cast

from ledger.audit.log_verification import verify_log
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore
from ledger.log.writer import Appended
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, signed_receipt
from tests.unit.ledger.log.faulty_store import Gate


def open_sequencer(store: object, **options: Any) -> Sequencer:
    return Sequencer(cast(EntryStore, store), KEYS["log"], TRUSTED, ORIGIN, **options)


def check_whole_log(store: EntryStore) -> None:
    report = verify_log(store.entries(0, 10_000), store.latest_checkpoint(), TRUSTED, ORIGIN)
    assert report.ok, report.problem


def hold(sequencer: Sequencer, gate: Gate) -> Future[Appended]:
    """Append one receipt and return once the writer stands at the closed gate with it."""
    while gate.reached.acquire(blocking=False):  # commits of before
        pass
    gate.open.clear()
    waiting = sequencer.append(signed_receipt(900))
    gate.reached.acquire()
    return waiting
