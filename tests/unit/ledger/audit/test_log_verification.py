import json
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.audit import log_verification
from ledger.audit.log_verification import CHECKS, Piece, Report, Spread, verify_appended, verify_log, verify_receipt
from ledger.audit.log_walk import CheckedEntry
from ledger.audit.processes import Processes
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import Document, sign_document, sign_rotation
from ledger.encoding.text_forms import cid
from ledger.errors import ChainError, FormatError, LedgerError, ProofError, SignatureError, StoreError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.merkle import inclusion_proof, leaf_hash
from tests.examples import VECTORS, examples
from tests.keys import seeded_key
from tests.unit.ledger.builders import (
    KEYS,
    OFF,
    ORIGIN,
    START,
    STRANGER,
    TRUSTED,
    at,
    halt,
    of_a_later_version,
    receipt,
    resume,
    signed,
    verdict,
)
from tests.unit.ledger.monitor.listed_log import ListedLog
from tests.unit.ledger.tree.naive_tree import NaiveHashes, NaiveTree
from tests.vectors.make_log import DOCUMENTS, chain, checkpoint_over, files, good_log

LOG = good_log()
TAMPERED = sorted((VECTORS / "tampered").iterdir())


def verify_folder(folder: Path, spread: Spread = map) -> Report:
    entries = (folder / "entries.jsonl").read_bytes().splitlines()
    trusted = TrustedKeys.load(VECTORS / "log/keys")
    return verify_log(iter(entries), (folder / "checkpoint").read_bytes(), trusted, ORIGIN, spread=spread)


def as_processes_do(work: Callable[[Piece], list[CheckedEntry]], pieces: Iterable[Piece]) -> Iterator[Any]:
    """Some pieces are taken before the first result is asked for; they travel by pickle, as results do."""
    ahead: deque[bytes] = deque()
    for piece in pieces:
        ahead.append(pickle.dumps((work, piece)))
        if len(ahead) > 3:
            yield _done(ahead.popleft())
    yield from map(_done, ahead)


def _done(job: bytes) -> Any:
    work, piece = pickle.loads(job)
    return pickle.loads(pickle.dumps(work(piece)))


def test_the_files_are_what_the_code_makes_of_them() -> None:
    made = files()
    kept = [path for folder in ("log", "tampered") for path in (VECTORS / folder).rglob("*") if path.is_file()]
    assert {str(path.relative_to(VECTORS)): path.read_bytes() for path in kept} == made


def test_the_untampered_log_passes_every_check() -> None:
    report = verify_folder(VECTORS / "log")
    assert report.ok
    assert [(check.number, check.passed) for check in report.checks] == [(n, True) for n in range(1, len(CHECKS) + 1)]
    assert (report.size, report.problem, report.bad_index) == (len(DOCUMENTS), None, None)
    assert report.kinds == {"key": 1, "receipt": 6, "verdict": 5, "halt": 1, "resume": 1, "engine_profile": 1}
    assert (report.halts.epoch, report.halts.open) == (1, ())
    assert report.defied_halts == ((6, 5),)


@pytest.mark.parametrize("folder", TAMPERED, ids=lambda folder: folder.name)
def test_a_tampered_log_is_refused_for_the_reason_in_its_file(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_bytes())
    report = verify_folder(folder)
    assert not report.ok
    assert report.problem is not None
    assert expected["problem"] in report.problem
    assert report.bad_index == expected["bad_index"]
    assert [check.number for check in report.checks if check.passed is False] == [expected["check"]]
    if report.bad_index is not None:
        assert report.problem.startswith(f"entry {report.bad_index}: ")
        assert report.size == report.bad_index


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, len(LOG.entries) - 1), st.integers(0), st.integers(1, 255))
def test_whichever_byte_of_whichever_entry_is_changed_that_entry_is_named(index: int, place: int, flip: int) -> None:
    data = bytearray(LOG.entries[index])
    data[place % len(data)] ^= flip
    report = verify_log([*LOG.entries[:index], bytes(data), *LOG.entries[index + 1 :]], LOG.checkpoint, TRUSTED, ORIGIN)
    assert report.bad_index == index
    assert str(report.problem).startswith(f"entry {index}: ")


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0), st.integers(1, 255))
def test_whichever_byte_of_the_checkpoint_is_changed_it_does_not_pass(place: int, flip: int) -> None:
    note = bytearray(LOG.checkpoint)
    note[place % len(note)] ^= flip
    report = verify_log(LOG.entries, bytes(note), TRUSTED, ORIGIN)
    assert [check.number for check in report.checks if check.passed is False] == [1]


@given(st.lists(st.binary(max_size=40) | st.sampled_from(LOG.entries), max_size=6), st.binary(max_size=40))
def test_whatever_the_bytes_verification_reports_and_never_raises(entries: list[bytes], note: bytes) -> None:
    assert not verify_log(entries, note, TRUSTED).ok
    report = verify_log(entries, None, TRUSTED)
    assert report.ok == (tuple(entries) == LOG.entries[: len(entries)])


def test_entries_beyond_the_checkpoint_are_checked_too() -> None:
    note = checkpoint_over(LOG.entries[:4])
    assert verify_log(LOG.entries, note, TRUSTED, ORIGIN).ok
    assert verify_log([*LOG.entries[:8], b"{}"], note, TRUSTED, ORIGIN).bad_index == 8


@pytest.mark.parametrize(
    ("changes", "defied"),
    [
        ({"halt_epoch": 1}, True),
        ({"halt_epoch": 0}, False),
        ({"halt_epoch": 1, "base_cid": cid(b"other")}, False),
        ({"halt_epoch": 1, "spec_decode": OFF}, False),
    ],
    ids=["knowing of it", "before it", "on another base", "with speculation off"],
)
def test_serving_in_a_halted_scope_is_flagged_only_after_the_halt(changes: dict[str, Any], defied: bool) -> None:
    documents = (
        receipt(0),
        verdict(0, 0, "DEVIATION"),
        halt(1),
        receipt(1, **changes),
        resume(2),
        receipt(2, halt_epoch=1),
    )
    report = verify_log(chain(Envelope.from_bytes(signed(document)) for document in documents), None, TRUSTED)
    assert report.ok
    assert report.defied_halts == (((3, 2),) if defied else ())


@pytest.mark.parametrize(
    ("size", "signer", "damaged", "checks"),
    [
        (3, "new", None, [True] * 5),
        (2, "new", None, [True] * 5),
        (2, "old", None, [True] * 5),
        (3, "old", None, [False] + 4 * [None]),  # it was replaced before
        (1, "new", None, [False] + 4 * [None]),  # a later entry introduces it
        (3, "stranger", None, [False] + 4 * [None]),
        (3, "new", 0, [None, False, None, None, None]),
        (3, "new", 2, [True, False, None, None, None]),
    ],
)
def test_a_checkpoint_of_a_successor_is_trusted_by_the_entry_that_introduces_it(
    size: int, signer: str, damaged: int | None, checks: list[bool | None]
) -> None:
    keys = {"old": KEYS["log"], "new": seeded_key(b"\x31" * 32, "log"), "stranger": seeded_key(b"\x32" * 32, "log")}
    log = ListedLog()
    rotation = KeyEntry("log", keys["new"].public, at(9), replaces=keys["old"].key_id)
    log.append(receipt(0), sign_rotation(rotation, keys["new"], keys["old"]).to_bytes(), receipt(1))
    entries = [b"{}" if index == damaged else data for index, data in enumerate(log.entries)]
    report = verify_log(entries, log.checkpoint(size, keys[signer]), TRUSTED, ORIGIN)
    assert [check.passed for check in report.checks][:2] == checks[:2], report.problem
    assert (report.ok, report.bad_index) == (all(checks), damaged)


def test_an_empty_log_verifies_under_the_checkpoint_of_an_empty_log() -> None:
    assert verify_log([], checkpoint_over([]), TRUSTED, ORIGIN).ok
    assert not verify_log([], LOG.checkpoint, TRUSTED, ORIGIN).ok


def test_without_a_checkpoint_its_checks_are_left_open() -> None:
    report = verify_log(LOG.entries, None, TRUSTED)
    assert report.ok
    assert [check.number for check in report.checks if check.passed is None] == [1, 5]


def test_a_failure_leaves_open_what_it_kept_from_being_checked() -> None:
    report = verify_log([*LOG.entries[:2], b"junk"], LOG.checkpoint, TRUSTED, ORIGIN)
    assert [check.passed for check in report.checks] == [True, False, None, None, None]
    report = verify_log(LOG.entries, b"junk", TRUSTED, ORIGIN)
    assert [check.passed for check in report.checks] == [False, None, None, None, None]
    report = verify_log(LOG.entries[:-1], LOG.checkpoint, TRUSTED, ORIGIN)
    assert [check.passed for check in report.checks] == [True, True, True, True, False]


def test_an_entry_that_cannot_be_read_is_named() -> None:
    def damaged() -> Iterator[bytes]:
        yield from LOG.entries[:3]
        raise StoreError("database disk image is malformed")

    report = verify_log(damaged(), LOG.checkpoint, TRUSTED, ORIGIN)
    assert report.problem == "entry 3: cannot be read: database disk image is malformed"
    assert report.bad_index == 3


def test_a_receipt_verifies_by_itself() -> None:
    assert verify_receipt(signed(receipt(1)), TRUSTED) == receipt(1)
    with pytest.raises(FormatError):
        verify_receipt(signed(verdict(1, 0)), TRUSTED)
    with pytest.raises(SignatureError):
        verify_receipt(signed(receipt(1)), TrustedKeys.of(STRANGER))


def test_an_answer_proves_that_the_log_holds_the_envelope() -> None:
    hashes = NaiveHashes(NaiveTree([leaf_hash(data) for data in LOG.entries]))
    envelopes = [signed(document) for document in DOCUMENTS]
    keys = [KEYS["log"].public]
    for index, envelope in enumerate(envelopes):
        proof = inclusion_proof(index, len(envelopes), hashes)
        entry = verify_appended(envelope, LOG.entries[index], proof, LOG.checkpoint, keys, ORIGIN)
        assert entry.envelope == Envelope.from_bytes(envelope)
        with pytest.raises(ProofError):
            verify_appended(envelopes[index - 1], LOG.entries[index], proof, LOG.checkpoint, keys, ORIGIN)
        with pytest.raises(ProofError):
            verify_appended(envelope, LOG.entries[index], proof[1:], LOG.checkpoint, keys, ORIGIN)
        with pytest.raises(SignatureError):
            verify_appended(envelope, LOG.entries[index], proof, LOG.checkpoint, [STRANGER.public], ORIGIN)


def test_a_kind_of_a_later_version_is_carried_chained_and_reported() -> None:
    log = ListedLog()
    log.append(receipt(0), of_a_later_version(), verdict(0, 0), of_a_later_version(KEYS["log"], "kolm.receipt.v2"))
    report = verify_log(log.entries, log.checkpoint(), TRUSTED, ORIGIN)
    assert (report.ok, report.kinds) == (True, {"receipt": 1, "unknown": 2, "verdict": 1})
    swapped = [log.entries[0], log.entries[2], log.entries[1], log.entries[3]]
    assert verify_log(swapped, log.checkpoint(), TRUSTED, ORIGIN).bad_index == 1


@pytest.mark.parametrize("size", [1, 2, 5, 128])
@pytest.mark.parametrize("folder", [VECTORS / "log", *TAMPERED], ids=lambda folder: folder.name)
def test_a_log_that_is_divided_among_processes_has_the_same_report(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = verify_folder(folder)
    monkeypatch.setattr(log_verification, "_PIECE", size)
    assert verify_folder(folder, as_processes_do) == alone


@pytest.mark.parametrize("size", [1, 2, 3, 128])
def test_a_key_that_is_replaced_counts_for_what_other_processes_have_checked_by_then(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = seeded_key(b"\x31" * 32, "receipts")
    rotation = KeyEntry("receipts", new.public, at(9), replaces=KEYS["receipts"].key_id)
    log, retired = ListedLog(), ListedLog()
    log.append(receipt(0), sign_rotation(rotation, new, KEYS["receipts"]).to_bytes())
    log.append(*(sign_document(receipt(number), new).to_bytes() for number in range(1, 6)))
    retired.append(receipt(0), sign_rotation(rotation, new, KEYS["receipts"]).to_bytes(), receipt(1), receipt(2))
    monkeypatch.setattr(log_verification, "_PIECE", size)
    for each, bad_index in ((log, None), (retired, 2)):
        report = verify_log(each.entries, each.checkpoint(), TRUSTED, ORIGIN, spread=as_processes_do)
        assert report.bad_index == bad_index, report.problem
        assert report == verify_log(each.entries, each.checkpoint(), TRUSTED, ORIGIN)


@pytest.mark.parametrize("failure", [StoreError("the disk is gone"), ChainError(3, "is damaged")])
@pytest.mark.parametrize("size", [1, 2, 128])
def test_what_was_read_before_a_failure_is_judged_first(
    failure: LedgerError, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries(first: bytes) -> Iterator[bytes]:
        yield from (first, *LOG.entries[1:3])
        raise failure

    monkeypatch.setattr(log_verification, "_PIECE", size)
    for spread in (map, as_processes_do):
        report = verify_log(entries(LOG.entries[0]), None, TRUSTED, ORIGIN, spread=spread)
        assert (report.size, report.bad_index) == (3, 3)
        assert verify_log(entries(b"junk"), None, TRUSTED, ORIGIN, spread=spread).bad_index == 0


@pytest.mark.parametrize(
    "envelope",
    [of_a_later_version(STRANGER), of_a_later_version(kind="other.thing.v1"), of_a_later_version(kind="kolm.thing")],
)
def test_a_stranger_s_document_is_refused_whatever_its_kind(envelope: bytes) -> None:
    log = ListedLog()
    log.append(receipt(0), envelope)
    report = verify_log(log.entries, log.checkpoint(), TRUSTED, ORIGIN)
    assert (report.ok, report.bad_index) == (False, 1)


@pytest.mark.parametrize("ahead", [receipt(1, issued_at=at(10**6)), verdict(0, 0, replayed_at=at(10**6))])
def test_a_document_of_a_time_to_come_is_named_by_the_verifier_s_clock_alone(ahead: Document) -> None:
    log = ListedLog()
    log.append(receipt(0), ahead)
    for now, first in ((None, ()), (START, (1,)), (START + timedelta(seconds=10**6 - 200), ())):
        report = verify_log(log.entries, log.checkpoint(), TRUSTED, ORIGIN, now)
        assert (report.ok, report.dated_ahead.first) == (True, first)


def divided(number: int) -> tuple[int, int]:
    return 100 // number, os.getpid()


def test_results_come_in_the_order_of_the_jobs_from_several_processes() -> None:
    results = list(Processes(2).map(divided, range(1, 31)))
    assert [result for result, _ in results] == [100 // number for number in range(1, 31)]
    assert len({process for _, process in results} - {os.getpid()}) >= 1


def test_there_is_a_process_for_each_core_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(workers: int, *_: object) -> None:
        raise Started(workers)

    monkeypatch.setattr("ledger.audit.processes.ProcessPoolExecutor", start)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    with pytest.raises(Started) as started:
        list(Processes().map(divided, range(1, 31)))
    assert started.value.args == (3,)


def test_few_jobs_are_done_here_and_few_are_taken_ahead() -> None:
    taken = 0

    def jobs() -> Iterator[int]:
        nonlocal taken
        for number in range(1, 1000):
            taken += 1
            yield number

    results = Processes(2).map(divided, jobs())
    assert next(results) == (100, os.getpid())
    assert taken == 1
    for _ in range(4):
        next(results)
    assert taken < 20


def test_an_error_of_a_job_is_raised_in_its_place() -> None:
    results = Processes(2).map(divided, [1, 2, 3, 4, 5, 0, 7])
    assert [next(results)[0] for _ in range(5)] == [100, 50, 33, 25, 20]
    with pytest.raises(ZeroDivisionError):
        next(results)


def ended(number: int) -> int:
    if number == 6:
        os._exit(1)
    return number


def test_a_process_that_dies_is_an_error_and_no_result() -> None:
    results = Processes(2).map(ended, range(1, 20))
    assert [next(results) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(StoreError):
        list(results)
