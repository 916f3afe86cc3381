"""Obligations follow from the log alone, cannot be known before the draw, and a broken promise is found."""

import hashlib
from datetime import timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.audit import Draw, draw_seed, is_sampled
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document, sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from tests.examples import examples
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, START, at, draw, fold_obligations, policy, receipt, signed, verdict
from tests.unit.ledger.monitor.listed_log import ListedLog
from tests.unit.ledger.tree.naive_tree import NaiveTree

AUDITOR = KEYS["auditor"]


class Log(ListedLog):
    """Appended entries, with draws over them."""

    def receive(self, first: int, count: int) -> list[int]:
        return [self.append(receipt(number)) for number in range(first, first + count)]

    def draw(self, size: int | None = None, number: int = 50, key: SigningKey = AUDITOR) -> int:
        size = len(self.entries) if size is None else size
        return self.append(sign_document(draw(size, self.root(size), number), key).to_bytes())

    def root(self, size: int) -> bytes:
        return NaiveTree([leaf_hash(entry) for entry in self.entries[:size]]).root(0, size)

    def fold(self) -> ObligationFold:
        return fold_obligations(self.entries)

    def owed(self) -> list[int]:
        return [one.index for one in self.fold().owed()]


def log_with(rate: float, count: int, within_seconds: int = 3600) -> Log:
    log = Log()
    log.append(policy(rate, within_seconds))
    log.receive(0, count)
    return log


def recomputed(log: Log) -> dict[int, int]:
    """Receipts that are sampled with the entry of their draw, computed from the log alone."""
    rate, decided, found = 0.0, 0, {}
    rates: dict[int, float] = {}
    for index, data in enumerate(log.entries):
        envelope = Entry.from_bytes(data).envelope
        document = read_document(envelope)
        if isinstance(document, Receipt):
            rates[index] = rate
        elif isinstance(document, Draw):
            seed = hashlib.sha256(envelope.to_bytes()).digest()
            for at_index in range(decided, document.tree_size):
                number = int.from_bytes(hashlib.sha256(seed + at_index.to_bytes(8, "big")).digest(), "big")
                if Fraction(number, 2**256) < Fraction(rates.get(at_index, 0.0)):
                    found[at_index] = index
            decided = max(decided, document.tree_size)
        elif hasattr(document, "rate"):
            rate = document.rate
    return found


@given(
    st.lists(
        st.one_of(
            st.integers(1, 4).map(lambda count: ("receipts", count)),
            st.floats(0.05, 0.95).map(lambda rate: ("policy", rate)),
            st.integers(0, 3).map(lambda behind: ("draw", behind)),
        ),
        max_size=14,
    )
)
@settings(max_examples=examples(40), deadline=None)
def test_every_reader_recomputes_the_obligations_from_the_log(steps: list[tuple[str, float]]) -> None:
    log, received = Log(), 0
    log.append(policy(0.3))
    for step, (what, value) in enumerate(steps):
        if what == "receipts":
            log.receive(received, int(value))
            received += int(value)
        elif what == "policy":
            log.append(policy(value))
        else:
            log.draw(max(1, len(log.entries) - int(value)), number=step)
    fold = log.fold()
    assert {one.index: one.draw_index for one in fold.owed()} == recomputed(log)
    assert fold.completeness().void_draws == ()


def test_before_the_draw_the_sample_is_unknown_and_another_draw_gives_another_sample() -> None:
    log = log_with(0.5, 40)
    assert log.owed() == []
    assert [one.index for one in log.fold().undrawn()] == list(range(1, 41))
    samples = set()
    for number in range(8):  # the operator does not have the auditor's key; each of these is a signature it cannot make
        attempt = Log()
        attempt.entries = list(log.entries)
        attempt.draw(number=number)
        samples.add(tuple(attempt.owed()))
    assert len(samples) == 8


def test_what_the_operator_appends_after_the_tree_of_a_draw_cannot_change_it() -> None:
    plain, stuffed = log_with(0.5, 40), log_with(0.5, 40)
    size = len(plain.entries)
    plain.draw(size)
    stuffed.receive(100, 3)
    stuffed.draw(size)
    assert plain.owed() == stuffed.owed() != []
    assert [one.index for one in stuffed.fold().undrawn()] == [41, 42, 43]


def test_a_draw_over_another_log_is_void_and_breaks_the_promise() -> None:
    log, shown = log_with(0.5, 4), log_with(0.5, 5)
    forked = log.append(draw(4, shown.root(6)))
    beyond = log.append(draw(9, shown.root(6)))
    done = log.fold().completeness()
    assert log.owed() == []
    assert done.void_draws == (forked, beyond)
    assert f"entry {forked}" in (done.problem or "")


def test_a_draw_with_a_second_signature_is_void() -> None:
    log = log_with(0.5, 4)
    second = seeded_key(b"\x0b" * 32, "auditor")
    one = Envelope.from_bytes(signed(draw(5, log.root(5))))
    two = sign_document(draw(5, log.root(5)), second)
    both = replace(one, signatures=(*one.signatures, *two.signatures))
    fold = ObligationFold()
    for data in log.entries:
        envelope = Entry.from_bytes(data).envelope
        fold.observe(leaf_hash(data), envelope, read_document(envelope))
    fold.observe(b"\x00" * 32, both, draw(5, log.root(5)))
    assert (fold.void_draws, fold.owed()) == ([5], ())


def test_at_rate_one_everything_is_owed_at_once_and_at_zero_nothing_ever() -> None:
    assert log_with(1.0, 3).owed() == [1, 2, 3]
    none = log_with(0.0, 3)
    none.draw()
    assert none.owed() == []
    assert none.fold().completeness().undrawn == 0


def test_a_receipt_that_says_itself_that_it_deviated_is_owed_without_any_policy() -> None:
    log = Log()
    confession = replace(receipt(0).spec_decode, verified_identical_to_off=False)
    log.append(receipt(0, spec_decode=confession))
    log.append(receipt(1))
    assert log.owed() == [0]
    assert log.fold().completeness().unpromised == 2


def test_a_later_policy_leaves_earlier_receipts_alone() -> None:
    log = log_with(1.0, 2)
    log.append(policy(0.0))
    log.receive(2, 2)
    assert log.owed() == [1, 2]
    assert [found.rate for _, found in log.fold().completeness().policies] == [1.0, 0.0]


def test_a_verdict_settles_before_the_draw_and_after_it() -> None:
    log = log_with(0.5, 30)
    log.append(verdict(1, 0))
    log.draw()
    for index in log.owed():
        log.append(verdict(index, index - 1, "UNREPLAYABLE" if index % 2 else "EXACT"))
    done = log.fold().completeness(START + timedelta(seconds=300))
    sampled = recomputed(log)
    assert log.owed() == []
    assert sum(done.outcomes.values()) == len(sampled)
    assert done.unreplayable == sum(index % 2 for index in sampled if index != 1) > 0
    assert done.is_kept
    assert [one.index for one in log.fold().judged() if one.verdict_index == 31] == [
        index for index in sampled if index == 1
    ]


def test_no_verdict_in_time_is_overdue_and_one_that_came_too_late_stays_late() -> None:
    log = log_with(1.0, 2, within_seconds=60)
    in_time = log.fold().completeness(START + timedelta(seconds=60))
    assert (in_time.is_kept, in_time.owed) == (True, 2)
    assert [one.index for one in log.fold().completeness(START + timedelta(seconds=62)).overdue] == [1, 2]
    log.append(verdict(1, 0))  # at second 100
    log.append(verdict(2, 1, replayed_at=at(30)))
    done = log.fold().completeness()
    assert ([one.index for one in done.late], done.overdue, done.is_kept) == ([1], (), False)
    assert "too late" in (done.problem or "")


def test_a_receipt_from_a_spool_is_counted_from_the_auditor_s_last_word_before_it() -> None:
    log = Log()
    log.append(policy(1.0, 60, number=500))
    log.receive(0, 1)  # issued at second 0
    assert [one.due_by for one in log.fold().owed()] == [at(560)]


def test_receipts_without_a_draw_in_time_are_overdue() -> None:
    log = log_with(0.5, 2, within_seconds=60)
    assert log.fold().completeness(START + timedelta(seconds=30)).is_kept
    assert [one.index for one in log.fold().completeness(START + timedelta(seconds=90)).overdue] == [1, 2]


def test_the_log_s_own_clock_judges_if_no_time_is_given() -> None:
    log = log_with(1.0, 1, within_seconds=60)
    assert log.fold().completeness().is_kept
    log.append(receipt(90))
    assert [one.index for one in log.fold().completeness().overdue] == [1]


def test_an_auditor_remembers_only_what_is_open() -> None:
    log = log_with(1.0, 3)
    for index in (1, 2):
        log.append(verdict(index, index - 1))
    fold = ObligationFold(keep_judged=False)
    for data in log.entries:
        envelope = Entry.from_bytes(data).envelope
        fold.observe(leaf_hash(data), envelope, read_document(envelope))
    assert [one.index for one in fold.all()] == [3]
    assert fold.completeness().outcomes["EXACT"] == 2


def test_an_exact_verdict_counts_as_independent_only_by_an_engine_of_the_auditor_s_own() -> None:
    log = log_with(1.0, 4)
    for index, (outcome, by) in enumerate(
        [("EXACT", "auditor"), ("EXACT", "server"), ("EXACT", None), ("DEVIATION", "auditor")], 1
    ):
        how = None if by is None else "decode"
        log.append(verdict(index, index - 1, outcome, verification=how, replayed_by=by))
    fold = log.fold()
    assert fold.completeness().outcomes == {"EXACT": 3, "DEVIATION": 1, "UNREPLAYABLE": 0}
    assert fold.completeness().independent == 1
    assert [one.independent for one in fold.judged()] == [True, False, False, True]


def test_the_share_of_sampled_entries_is_the_rate_and_a_higher_rate_only_adds() -> None:
    seed = draw_seed(Envelope.from_bytes(signed(draw(1, b"\x01" * 32))))
    few, many = ({index for index in range(20_000) if is_sampled(seed, index, rate)} for rate in (0.1, 0.25))
    assert few < many
    assert abs(len(many) / 20_000 - 0.25) < 0.015  # five standard deviations
