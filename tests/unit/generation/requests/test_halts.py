"""Known halts, folded from the ledger's answers and from findings of this server."""

import asyncio
import logging
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import add_signature, sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope, Signature
from ledger.keys.trusted_keys import FixedThreshold, TrustedKeys
from ledger.tree.entry import Entry
from services.generation.ledger_link import LedgerUnreachable
from services.generation.requests.halts import HaltBoard, HaltKnowledge, ResumeVerifier
from tests.keys import seeded_key

BASE = "cidv1:sha256:" + "a" * 64
LOOKAHEAD, EAGLE = Scope(BASE, "lookahead"), Scope(BASE, "eagle3", "cidv1:sha256:" + "b" * 64)


def answer(epoch: int, *scopes: Scope, size: int = 0) -> ledger_pb2.GetHaltStateResponse:
    halts = [
        documents_pb2.Halt(
            scope=documents_pb2.Scope(base_cid=s.base_cid, method=s.method, head_cid=s.head_cid), halt_index=7
        )
        for s in scopes
    ]
    return ledger_pb2.GetHaltStateResponse(epoch=epoch, halts=halts, tree_size=size)


def test_the_ledger_s_word_replaces_the_one_before() -> None:
    known = HaltKnowledge().after(answer(2, LOOKAHEAD, EAGLE))
    assert (known.epoch, known.scopes) == (2, (LOOKAHEAD, EAGLE))
    assert known.after(answer(2, EAGLE)).scopes == (EAGLE,)


def test_a_deviation_found_here_stays_halted_while_the_ledger_knows_nothing_of_it() -> None:
    known = HaltKnowledge().with_local(LOOKAHEAD).with_local(LOOKAHEAD)
    assert known.scopes == (LOOKAHEAD,)
    assert known.after(answer(0)).scopes == (LOOKAHEAD,)
    assert known.after(answer(1, EAGLE)).scopes == (EAGLE, LOOKAHEAD)


def test_once_the_ledger_has_halted_it_a_resume_in_the_ledger_ends_it() -> None:
    taken_over = HaltKnowledge().with_local(LOOKAHEAD).after(answer(1, LOOKAHEAD))
    assert taken_over.local == ()
    assert taken_over.scopes == (LOOKAHEAD,)
    assert taken_over.after(answer(1)).scopes == ()


def test_a_halt_of_every_head_takes_over_one_found_for_a_single_head() -> None:
    assert HaltKnowledge().with_local(EAGLE).after(answer(1, Scope(BASE, "eagle3"))).local == ()


async def test_a_deviation_found_while_the_ledger_is_being_asked_is_not_forgotten(tmp_path: Path) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def read() -> ledger_pb2.GetHaltStateResponse:
        asked.set()
        await answered.wait()
        return answer(0)

    board = HaltBoard(tmp_path / "halts.json", read, every=1.0)
    refresh = asyncio.ensure_future(board.refresh())
    await asked.wait()
    await board.deviated(LOOKAHEAD)
    answered.set()
    await refresh
    assert board.known
    assert [scope.method for scope in board.scopes if scope.base_cid == BASE] == ["lookahead"]
    assert HaltBoard(tmp_path / "halts.json", read, every=1.0).scopes == (LOOKAHEAD,)


async def test_two_questions_at_once_say_once_that_the_ledger_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def read() -> ledger_pb2.GetHaltStateResponse:
        await asyncio.sleep(0)
        return answer(1, EAGLE)

    board = HaltBoard(tmp_path / "halts.json", read, every=1.0)
    await asyncio.gather(board.refresh(), board.refresh())
    assert len([record for record in caplog.records if record.levelno == logging.INFO and record.args == (1, 1)]) == 1


async def test_an_answer_counts_for_as_long_as_the_lease_from_the_question_on(tmp_path: Path) -> None:
    now = 100.0

    async def read() -> ledger_pb2.GetHaltStateResponse:
        nonlocal now
        now += 2  # until the answer is there
        return answer(0)

    board = HaltBoard(tmp_path / "halts.json", read, every=1.0, lease=30.0, clock=lambda: now)
    assert not board.known
    await board.refresh()
    for now, known in ((129.5, True), (130.0, False)):  # noqa: B007
        assert board.known is known
    await board.refresh()
    assert board.known


async def test_a_kept_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "halts.json").write_text('{"epoch": 3')
    board = HaltBoard(tmp_path / "halts.json", asyncio.Event().wait, every=1.0)  # type: ignore[arg-type]
    assert (board.epoch, board.scopes, board.known) == (0, (), False)


def resumed(*keys: SigningKey, halt_index: int = 7, scope: Scope = LOOKAHEAD) -> Entry:
    """The resume of a halt in entry 9, with the signatures of these operators."""
    envelope = sign_document(Resume(scope, halt_index, "the kernel was replaced", "2026-01-02T03:04:05.000Z"), keys[0])
    for key in keys[1:]:
        envelope = add_signature(envelope, key)
    return Entry(9, envelope)


ANNA, BERT, STRANGER = (seeded_key(bytes([number]) * 32, "operator") for number in (1, 2, 3))


async def after_the_ledger_dropped_it(path: Path, trusted: TrustedKeys, *resumes: Entry) -> HaltBoard:
    """The board once the ledger has listed a halt of lookahead and then no longer does."""
    answers, asked = [answer(1, LOOKAHEAD), answer(1)], []

    async def read() -> ledger_pb2.GetHaltStateResponse:
        return answers.pop(0)

    async def read_resumes(start: int) -> list[Entry]:
        asked.append(start)
        return list(resumes)

    board = HaltBoard(path, read, 1.0, ResumeVerifier(read_resumes, trusted).unverified)
    await board.refresh()
    assert asked == []
    board = HaltBoard(path, read, 1.0, ResumeVerifier(read_resumes, trusted).unverified)  # over a restart too
    await board.refresh()
    return board


async def test_a_halt_ends_with_the_resume_and_not_with_the_ledger_s_word(tmp_path: Path) -> None:
    trusted = TrustedKeys.of(ANNA)
    board = await after_the_ledger_dropped_it(tmp_path / "none", trusted)
    assert board.scopes == (LOOKAHEAD,)
    junk = Entry(9, Envelope(b"", "", (Signature(),)))
    for number, forged in enumerate((resumed(STRANGER), resumed(ANNA, halt_index=6), resumed(ANNA, scope=EAGLE), junk)):
        board = await after_the_ledger_dropped_it(tmp_path / str(number), trusted, forged)
        assert board.scopes == (LOOKAHEAD,)
    board = await after_the_ledger_dropped_it(tmp_path / "good", trusted, resumed(STRANGER), resumed(ANNA))
    assert board.scopes == ()


@pytest.mark.parametrize(
    ("trusted", "resume", "ends"),
    [
        ((ANNA,), (ANNA, LOOKAHEAD), True),
        ((), (STRANGER, LOOKAHEAD), True),
        ((ANNA,), (STRANGER, LOOKAHEAD), False),
        ((ANNA,), (ANNA, EAGLE), False),
    ],
)
async def test_a_deviation_halted_and_resumed_while_the_server_was_down_ends(
    tmp_path: Path, trusted: tuple[SigningKey, ...], resume: tuple[SigningKey, Scope], ends: bool
) -> None:
    answers = [answer(1, size=5), answer(2, size=10), answer(2, size=11)]

    async def read() -> ledger_pb2.GetHaltStateResponse:
        return answers.pop(0)

    async def read_resumes(start: int) -> list[Entry]:
        assert start == 5
        return [resumed(resume[0], scope=resume[1])]

    def board() -> HaltBoard:
        resumes = ResumeVerifier(read_resumes, TrustedKeys.of(*trusted))
        return HaltBoard(tmp_path / "halts.json", read, 1.0, resumes.unverified, resumes.scopes)

    before = board()
    await before.refresh()
    await before.deviated(LOOKAHEAD)
    after = board()
    await after.refresh()
    await after.refresh()
    assert after.scopes == (() if ends else (LOOKAHEAD,))


async def test_a_time_that_no_calendar_has_is_an_answer_that_did_not_come(tmp_path: Path) -> None:
    async def read() -> ledger_pb2.GetHaltStateResponse:
        return ledger_pb2.GetHaltStateResponse(answer_time=Timestamp(seconds=2**62))

    with pytest.raises(LedgerUnreachable):
        await HaltBoard(tmp_path / "halts.json", read, every=1.0).refresh()


async def test_where_two_operators_have_to_sign_the_word_of_one_ends_nothing(tmp_path: Path) -> None:
    trusted = TrustedKeys(TrustedKeys.of(ANNA, BERT).by_role, FixedThreshold(((0, 2),)))
    assert (await after_the_ledger_dropped_it(tmp_path / "one", trusted, resumed(ANNA))).scopes == (LOOKAHEAD,)
    assert (await after_the_ledger_dropped_it(tmp_path / "two", trusted, resumed(ANNA, BERT))).scopes == ()


async def test_without_an_operator_s_key_the_ledger_is_believed(tmp_path: Path) -> None:
    assert (await after_the_ledger_dropped_it(tmp_path / "halts.json", TrustedKeys())).scopes == ()
