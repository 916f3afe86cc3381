"""A time to come does not count, in any document: it delays no replay, hides no halt and accuses no one."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from ledger.audit.halt_breach import Breach, HaltWatch
from ledger.audit.log_clock import LogClock, Moment
from ledger.audit.log_verification import verify_log
from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.dates import MOST_SKEW_SECONDS
from ledger.documents.signed_document import Document, open_document
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from tests.unit.ledger.audit.test_obligation_fold import Log
from tests.unit.ledger.builders import (
    ORIGIN,
    START,
    TRUSTED,
    at,
    draw,
    halt,
    policy,
    receipt,
    receipt_id,
    resume,
    verdict,
)
from tests.unit.ledger.documents.test_documents import DOCUMENTS
from tests.unit.ledger.log.test_admission import TIMES, dated

NOW = 10_000
"""Second at which the verifier reads the log."""
YEARS = NOW + 10**8
WITHIN = 600


def clock(now: int = NOW) -> LogClock:
    made = LogClock()
    made.now_is(START + timedelta(seconds=now))
    return made


def folded(*documents: Document, now: int = NOW, halfway: bool = False) -> ObligationFold:
    """The fold by a verifier whose clock is at second `now`; `halfway` keeps it as JSON after each entry."""
    log, fold, read = Log(), ObligationFold(), clock(now)
    for document in documents:
        log.append(document)
    for data in log.entries:
        envelope = Entry.from_bytes(data).envelope
        document = open_document(envelope, TRUSTED, fold.size)
        fold.observe(leaf_hash(data), envelope, document, read.read(fold.size, document))
        if halfway:
            fold = ObligationFold.from_document(fold.to_document())
            bound, read = read.not_after, LogClock.from_document(read.to_document())
            read.not_after = bound
    return fold


def due(*documents: Document, now: int = NOW) -> list[str]:
    kept = folded(*documents, now=now, halfway=True)
    assert [one.due_by for one in kept.owed()] == [one.due_by for one in folded(*documents, now=now).owed()]
    return [one.due_by for one in kept.owed()]


def state(*documents: Document, now: int = NOW) -> list[str]:
    return [one.state(at(now)) for one in folded(*documents, now=now).all()]


PROMISED = policy(1.0, WITHIN, number=100)
AHEAD = receipt(1, issued_at=at(YEARS))


def test_a_receipt_dated_ahead_is_owed_from_the_next_time_that_the_log_names() -> None:
    assert due(PROMISED, AHEAD, receipt(200)) == [at(200 + WITHIN)] * 2
    assert due(PROMISED, AHEAD, receipt(50), receipt(200)) == [at(200 + WITHIN), at(100 + WITHIN), at(200 + WITHIN)]
    assert due(PROMISED, AHEAD, AHEAD_TOO, verdict(2, 2, replayed_at=at(300))) == [at(300 + WITHIN)]


AHEAD_TOO = receipt(2, issued_at=at(YEARS + 5))


def test_while_the_log_names_none_the_time_before_it_counts_so_that_silence_puts_nothing_off() -> None:
    assert due(PROMISED, AHEAD) == [at(100 + WITHIN)]
    assert due(PROMISED, AHEAD, AHEAD_TOO) == [at(100 + WITHIN)] * 2
    assert state(PROMISED, AHEAD, now=100 + WITHIN) == ["OWED"]
    assert state(PROMISED, AHEAD, now=101 + WITHIN) == ["OVERDUE"]


def test_an_honest_verdict_after_an_idle_week_is_in_time() -> None:
    week = 100 + 7 * 86_400
    log = (PROMISED, AHEAD, verdict(1, 1, replayed_at=at(week)))
    assert state(*log, now=week) == ["JUDGED"]
    assert sorted(state(*log[:2], receipt(week), log[2], now=week)) == ["JUDGED", "OWED"]


def test_a_late_verdict_on_a_receipt_dated_ahead_is_late() -> None:
    log = (PROMISED, AHEAD, receipt(200), verdict(1, 1, replayed_at=at(201 + WITHIN)))
    assert sorted(state(*log)) == ["LATE", "OVERDUE"]


@pytest.mark.parametrize("spoken", [policy(1.0, WITHIN, number=YEARS), draw(1, bytes(32), YEARS)])
def test_an_auditor_that_dates_itself_ahead_does_not_put_off_what_it_owes(spoken: Document) -> None:
    assert due(PROMISED, spoken, receipt(150)) == [at(150 + WITHIN)]
    early = verdict(1, 150, replayed_at=at(YEARS))
    assert due(PROMISED, receipt(150), early, receipt(151)) == [at(151 + WITHIN)]


def test_a_verdict_dated_ahead_counts_by_the_time_before_it() -> None:
    ahead = verdict(1, 150, replayed_at=at(YEARS))
    assert state(PROMISED, receipt(150), ahead) == ["JUDGED"]
    assert "LATE" in state(PROMISED, receipt(150), receipt(151 + WITHIN), ahead)


def test_a_log_in_which_all_is_ahead_is_counted_from_the_verifiers_own_time() -> None:
    assert due(policy(1.0, WITHIN, number=YEARS), AHEAD, now=5) == [at(5 + WITHIN)]


def test_the_dates_that_do_not_count_are_not_the_logs_latest() -> None:
    assert folded(PROMISED, AHEAD).latest == at(100)


def breaches(*documents: Document) -> list[Breach]:
    watch, read = HaltWatch(), clock()
    for index, document in enumerate(documents):
        watch.observe(index, document, read.read(index, document))
    return watch.breaches


def served(second: int, epoch: int) -> Document:
    return receipt(0, issued_at=at(second), halt_epoch=epoch)


def test_a_halt_dated_ahead_excuses_no_receipt_from_before_it() -> None:
    before = verdict(0, 0, replayed_at=at(1000))
    stopped = replace(halt(0), issued_at=at(YEARS))
    assert breaches(before, stopped, served(1200, 0)) == []
    assert breaches(before, stopped, served(1400, 0)) == [Breach(2, 1, knew=False)]


def test_a_resume_dated_ahead_accuses_no_operator() -> None:
    resumed = replace(resume(0), issued_at=at(YEARS))
    assert breaches(halt(9), draw(1, bytes(32), 2000), resumed, served(2100, 1)) == []
    assert breaches(halt(9), draw(1, bytes(32), 2000), resumed, served(1600, 1)) == [Breach(3, 0, knew=True)]


@pytest.mark.parametrize(("kind", "path"), TIMES)
def test_every_kind_is_named_whichever_member_is_ahead(kind: str, path: str) -> None:
    read = clock()
    bound = START + timedelta(seconds=NOW + MOST_SKEW_SECONDS)
    document = DOCUMENTS[kind]
    if kind != "expiry":  # its dates are a month after the others
        assert not read.read(0, document).ahead
    assert not clock().read(0, dated(DOCUMENTS["kscore"], "measured_at", bound)).ahead
    read = clock()
    moment = read.read(7, dated(document, path, bound + timedelta(milliseconds=1)))
    assert (read.ahead.count, read.ahead.first, read.ahead.newest) == (1, (7,), 7)
    if path != "receipt_id":  # the receipt's own date counts
        assert moment == Moment(at(NOW), ahead=True)


def test_few_entries_are_named_and_all_are_counted() -> None:
    read = clock()
    for index in range(20):
        read.read(index, replace(AHEAD, issued_at=at(YEARS - index)))
    assert (read.ahead.count, read.ahead.first, read.ahead.newest) == (20, (0, 1, 2, 3, 4), 19)
    assert read.ahead.latest == at(YEARS)
    assert "15 more" in str(read.ahead)


def test_a_verified_log_says_so_and_is_in_order() -> None:
    log = Log()
    for document in (receipt(0), AHEAD, verdict(1, 1)):
        log.append(document)
    report = verify_log(log.entries, None, TRUSTED, ORIGIN, START)
    assert (report.ok, report.size, report.dated_ahead.first) == (True, 3, (1,))
    assert not verify_log(log.entries, None, TRUSTED, ORIGIN).dated_ahead


def test_an_id_made_ahead_of_time_is_named() -> None:
    read = clock()
    moment = read.read(3, receipt(9, receipt_id=receipt_id(YEARS)))
    assert (read.ahead.first, moment) == ((3,), Moment(at(9)))
