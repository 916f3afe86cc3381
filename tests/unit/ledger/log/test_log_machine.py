"""A ledger under anything that can happen to it, against the O(n) tree of RFC 6962 and a list of the answers."""

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledger.audit.log_verification import verify_appended, verify_log
from ledger.documents.content import Content
from ledger.errors import Conflict, LedgerError, StoreError
from ledger.log.continuity import Guard
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore, entries_from
from ledger.log.writer import Appended
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from ledger.tree.merkle import leaf_hash, verify_consistency, verify_inclusion
from tests.examples import examples
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, receipt, signed, signed_receipt, verdict
from tests.unit.ledger.log.faulty_store import FAULTS, FaultyGuard, FaultyStore, Once
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard
from tests.unit.ledger.tree.naive_tree import NaiveTree

NUMBERS = st.integers(0, 400)
LOG_KEYS = (KEYS["log"].public,)


@dataclass(frozen=True)
class Promise:
    """The answers that a caller got; they have to hold from then on."""

    envelope: bytes
    answer: Appended


class LogMachine(RuleBasedStateMachine):
    """Appends, repeats, conflicts, failures at every step, restarts; clocks that run as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.guard, self.strike = MemoryEntryStore(), MemoryGuard(), Once()
        self.promises: dict[bytes, Promise] = {}
        self.heads: list[Checkpoint] = []
        self.tree = NaiveTree()
        self.time = 0.0

    @initialize()
    def start(self) -> None:
        self.sequencer = Sequencer(
            cast(EntryStore, FaultyStore(self.store, self.strike)),
            KEYS["log"],
            TRUSTED,
            ORIGIN,
            guard=cast(Guard, FaultyGuard(self.guard, self.strike)),
            batch_size=7,
            clock=lambda: self.time,
        )
        self.reader = LedgerReader(cast(EntryStore, self.store), self.sequencer.board)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=20), with_content=st.booleans())
    def append(self, numbers: list[int], with_content: bool) -> None:
        sent = [(signed_receipt(number), content(number) if with_content else None) for number in numbers]
        self.settle([(envelope, self.sequencer.append(envelope, kept)) for envelope, kept in sent])

    @precondition(lambda self: self.promises)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        promise = data.draw(st.sampled_from(list(self.promises.values())))
        again = self.sequencer.append(promise.envelope, cast(Content | None, None)).result()
        assert again.index == promise.answer.index

    @rule(number=NUMBERS)
    def take_an_id(self, number: int) -> None:
        taken = signed_receipt(number) in self.promises
        envelope = signed(receipt(number, tenant="another tenant"))
        if taken:
            with pytest.raises(Conflict):
                self.sequencer.append(envelope).result()

    @rule(number=NUMBERS)
    def judge(self, number: int) -> None:
        promise = self.promises.get(signed_receipt(number))
        if promise is not None:
            envelope = signed(verdict(promise.answer.index, number))
            self.settle([(envelope, self.sequencer.append(envelope))])

    @rule(fault=st.sampled_from(FAULTS), number=NUMBERS)
    def fail(self, fault: str, number: int) -> None:
        """One append while a step fails; unless it has nothing to write, it is not acknowledged."""
        self.strike.armed = fault
        envelope = signed_receipt(number)
        with suppress(StoreError):
            self.settle([(envelope, self.sequencer.append(envelope))])
        self.strike.armed = None
        self.catch_up()

    @rule()
    def restart(self) -> None:
        self.sequencer.close()
        self.start()

    @rule(seconds=st.floats(-1e6, 1e6))
    def set_the_clock(self, seconds: float) -> None:
        self.time += seconds

    @invariant()
    def every_promise_holds(self) -> None:
        if self.promises:
            head = self.sequencer.board.latest()
            for promise in list(self.promises.values())[:: max(1, len(self.promises) // 5)]:
                proof = self.reader.inclusion_proof(promise.answer.index)
                assert list(proof) == self.tree.path(promise.answer.index, 0, head.size)
                leaf = leaf_hash(promise.answer.entry)
                verify_inclusion(leaf, promise.answer.index, head.size, proof, head.checkpoint.root)

    @invariant()
    def every_head_is_a_prefix_of_the_newest(self) -> None:
        if self.heads:
            newest = self.sequencer.board.latest().checkpoint
            assert newest.root == self.tree.root(0, newest.size)
            assert self.guard.read(ORIGIN) == newest
            for head in self.heads[-3:] + self.heads[:1]:
                proof = self.reader.consistency_proof(head.size, newest.size)
                verify_consistency(head.size, newest.size, proof, head.root, newest.root)

    def teardown(self) -> None:
        self.sequencer.close()
        entries = list(entries_from(cast(EntryStore, self.store)))
        report = verify_log(entries, self.store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert report.ok, report.problem
        for promise in self.promises.values():
            assert entries[promise.answer.index] == promise.answer.entry

    def settle(self, sent: list[tuple[bytes, Future[Appended]]]) -> None:
        """Remember what was acknowledged, having checked it as a careful client does."""
        failures: list[LedgerError] = []
        for envelope, future in sent:
            try:
                answer = future.result()
            except LedgerError as error:
                failures.append(error)
                continue
            verify_appended(envelope, answer.entry, answer.inclusion_proof, answer.checkpoint, LOG_KEYS, ORIGIN)
            known = self.promises.setdefault(envelope, Promise(envelope, answer))
            assert (known.answer.index, known.answer.entry) == (answer.index, answer.entry)
            self.heads.append(open_checkpoint(answer.checkpoint, LOG_KEYS))
        self.catch_up()
        if failures:
            raise failures[0]

    def catch_up(self) -> None:
        """The naive tree grows by the entries that the head covers; those before may never have changed."""
        entries = self.store.entries(0, self.sequencer.board.latest().size)
        assert [leaf_hash(data) for data in entries[: len(self.tree.leaves)]] == self.tree.leaves
        self.tree.leaves += [leaf_hash(data) for data in entries[len(self.tree.leaves) :]]


LogMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25)
test_a_log_keeps_every_promise_whatever_happens = LogMachine.TestCase
