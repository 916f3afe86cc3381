"""Audit passes over a real ledger: what they write, and that they can be killed anywhere."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from ledger.documents.audit import Draw, Verdict
from ledger.documents.receipt import SpecDecode
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import cid
from ledger.keys.ed25519 import PublicKey, SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import RETIRED, TrustedKeys
from ledger.tree.entry import Entry
from services.auditor.appender import Appender, Terms
from services.auditor.audit_error import BrokenLog, EngineAway, FolderError
from services.auditor.auditor import Auditor
from services.auditor.held_folder import HeldFolder, Share
from services.auditor.serving import follow
from services.client.channel import Connection
from services.client.errors import InvalidArgument, Unavailable
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import LogEntry
from tests.integration.auditor.deployment import (
    Deployment,
    InterruptedAppender,
    OneHaltAppender,
    OneVerdictAppender,
    opened_deployment,
    stopped_after,
)
from tests.mutations import replace
from tests.unit.ledger.builders import (
    KEYS,
    OFF,
    SCOPE,
    content,
    draw,
    erasure,
    fold_obligations,
    foreign_receipt,
    receipt,
    receipt_id,
    signed,
    verdict,
)


def outcomes(deployment: Deployment) -> list[tuple[int, str]]:
    return [(verdict.document.receipt_index, verdict.document.outcome) for verdict in deployment.ledger.verdicts()]


def test_a_pass_gives_every_receipt_its_verdict_and_the_next_pass_has_nothing_to_do(deployment: Deployment) -> None:
    indexes = [deployment.receive(number) for number in range(3)]
    auditor = deployment.auditor()
    assert [each.receipt_index for each in auditor.run_pass()] == indexes
    assert outcomes(deployment) == [(index, "EXACT") for index in indexes]
    assert list(auditor.run_pass()) == []
    assert len(deployment.replays.asked) == 3


def test_a_look_at_a_log_that_has_not_grown_is_one_call(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.receive(0)
    auditor = deployment.auditor()
    assert len(list(auditor.run_pass())) == 1
    assert list(auditor.run_pass()) == []  # reads its own verdict
    calls, call = list[Any](), Connection.call

    def counted(connection: Connection, method: Any, *given: Any) -> Any:
        calls.append(method)
        return call(connection, method, *given)

    monkeypatch.setattr(Connection, "call", counted)
    monkeypatch.setattr(LedgerClient, "watch", lambda *_, **__: pytest.fail("nothing is there to be watched"))
    assert list(auditor.run_pass()) == []
    assert len(calls) == 1


def test_an_auditor_that_starts_again_knows_from_the_ledger_what_is_done(deployment: Deployment) -> None:
    deployment.receive(0)
    first = deployment.receive(1)
    passes = deployment.auditor().run_pass()
    next(passes)
    passes.close()
    assert [each.receipt_index for each in deployment.auditor().run_pass()] == [first]
    assert len(outcomes(deployment)) == 2


def test_a_deviation_halts_its_method_once(deployment: Deployment) -> None:
    deployment.receive(0)
    deployment.receive(1)
    deployment.replays.lies = {receipt_id(0), receipt_id(1)}
    first, second = deployment.auditor().run_pass()
    assert first.finding.outcome == second.finding.outcome == "DEVIATION"
    assert (first.halt_index, second.halt_index) == (first.verdict_index + 1, None)
    (halt,) = deployment.ledger.halt_state().halts
    assert (halt.scope.base_cid, halt.scope.method) == (SCOPE.base_cid, "lookahead")
    assert halt.verdict_index == first.verdict_index
    assert receipt_id(0) in halt.reason


def moved(*methods: str) -> SpecDecode:
    """By lookahead at first, then by others too, a pass each."""
    passes = tuple((method, 1) for method in sorted(methods))
    return replace(
        receipt(0).spec_decode,
        tokens_accepted=0,
        acceptance_rate=0.0,
        target_passes=len(passes),
        mean_acceptance_length=2 / len(passes),
        passes_by_method=dict(passes),
    )


def test_a_deviation_of_a_request_that_moved_halts_every_method_that_drafted(deployment: Deployment) -> None:
    deployment.receive(0, spec_decode=moved("draft", "lookahead"))
    deployment.receive(1, spec_decode=moved("draft", "rest"))
    deployment.replays.lies = {receipt_id(0), receipt_id(1)}
    first, second = deployment.auditor().run_pass()
    halts = deployment.ledger.halt_state().halts
    assert [(halt.scope.method, halt.verdict_index) for halt in halts] == [
        ("lookahead", first.verdict_index), ("draft", first.verdict_index), ("rest", second.verdict_index),
    ]  # fmt: skip
    assert (first.halt_index, second.halt_index) == (halts[0].halt_index, halts[2].halt_index)
    assert list(deployment.auditor().run_pass()) == []
    assert len(deployment.ledger.halt_state().halts) == 3


def test_an_auditor_killed_between_two_halts_of_a_verdict_owes_the_second(deployment: Deployment) -> None:
    deployment.receive(0, spec_decode=moved("draft", "lookahead"))
    deployment.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(appender=OneHaltAppender).run_pass())
    assert [halt.scope.method for halt in deployment.ledger.halt_state().halts] == ["lookahead"]
    assert list(deployment.auditor().run_pass()) == []
    assert [halt.scope.method for halt in deployment.ledger.halt_state().halts] == ["lookahead", "draft"]


def test_an_auditor_killed_between_the_two_verdicts_on_a_receipt_owes_the_second(deployment: Deployment) -> None:
    index = deployment.ledger.append(signed(foreign_receipt(0)), content(0)).index
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(appender=OneVerdictAppender).run_pass())
    assert outcomes(deployment) == [(index, "SAME")]
    for _ in range(2):
        assert list(deployment.auditor().run_pass()) == []
        assert outcomes(deployment) == [(index, "SAME"), (index, "CONSISTENT")]


def test_an_engine_that_is_away_holds_up_no_receipt_but_those_that_it_would_be_asked_about(
    deployment: Deployment,
) -> None:
    asked, other = deployment.ledger.append(signed(foreign_receipt(0)), content(0)).index, deployment.receive(1)
    deployment.checks.away = {receipt_id(0)}
    auditor = deployment.auditor()
    with pytest.raises(EngineAway):
        list(auditor.run_pass())
    assert outcomes(deployment) == [(other, "EXACT")]
    deployment.checks.away.clear()
    list(auditor.run_pass())
    assert outcomes(deployment)[1:] == [(asked, "SAME"), (asked, "CONSISTENT")]


def test_verdicts_that_were_kept_for_another_log_hold_nothing_up(deployment: Deployment) -> None:
    with deployment.folder as folder:
        folder.keep_verdicts([signed(verdict(0, 5)), b"cut sho"])
        index = deployment.receive(0)
        assert [each.receipt_index for each in deployment.auditor().run_pass()] == [index]
        assert folder.kept_verdicts() == ()
        folder.keep_verdicts([signed(verdict(5, 5))])
        with pytest.raises(BrokenLog):  # or the log has become shorter than it was
            list(deployment.auditor().run_pass())
        assert len(folder.kept_verdicts()) == 1


class RefusedAppender(Appender):
    """The ledger refuses its second verdicts, also after a restart."""

    reason: ClassVar = ""

    def append(self, envelope: Envelope) -> int:
        document = read_document(envelope)
        if isinstance(document, Verdict) and document.outcome != "SAME":
            raise InvalidArgument("no", reason=self.reason)
        return super().append(envelope)


@pytest.mark.parametrize("reason", ["CLOCK_AHEAD", "UNTRUSTED_SIGNATURE", "INVENTED"])
def test_a_kept_verdict_is_kept_until_the_log_of_its_receipt_takes_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(RefusedAppender, "reason", reason)
    index = deployment.ledger.append(signed(foreign_receipt(0)), content(0)).index
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            list(deployment.auditor(appender=RefusedAppender).run_pass())
        assert outcomes(deployment) == [(index, "SAME")]
    list(deployment.auditor().run_pass())
    assert outcomes(deployment) == [(index, "SAME"), (index, "CONSISTENT")]


def test_a_receipt_without_content_is_unreplayable_and_not_asked_about_again(deployment: Deployment) -> None:
    deployment.receive(0, with_content=False)
    (examined,) = deployment.auditor().run_pass()
    assert (examined.finding.outcome, examined.finding.passed) == ("UNREPLAYABLE", False)
    assert list(deployment.auditor().run_pass()) == []
    assert deployment.replays.asked == []


def test_a_receipt_whose_content_was_erased_is_unreplayable_and_says_by_which_entry(deployment: Deployment) -> None:
    auditor = deployment.auditor(Terms(1.0, 3600), spot_checks=0.0)
    list(auditor.run_pass())
    index = deployment.receive(0)
    with LedgerClient.connect(deployment.address) as operator:
        operator.erase(signed(erasure(index, 0)))
    (examined,) = auditor.run_pass()
    assert (examined.finding.outcome, examined.finding.passed) == ("UNREPLAYABLE", False)
    assert f"the content was erased by entry {index + 1}" in (examined.finding.reason or "")
    assert deployment.replays.asked == []


def kinds(deployment: Deployment) -> list[str]:
    with deployment.ledger.watch(0) as entries:
        return [entry.kind for entry in entries]


def test_what_an_auditor_promises_stands_in_the_log_once(deployment: Deployment) -> None:
    terms = Terms(rate=1.0, within_seconds=3600)
    list(deployment.auditor(terms, spot_checks=0.0).run_pass())
    list(deployment.auditor(terms, spot_checks=0.0).run_pass())
    assert kinds(deployment) == ["audit_policy"]
    list(deployment.auditor(Terms(rate=0.0, within_seconds=3600), spot_checks=0.0).run_pass())
    assert kinds(deployment) == ["audit_policy", "audit_policy"]


def test_a_draw_decides_and_what_it_names_gets_its_verdicts(deployment: Deployment) -> None:
    auditor = deployment.auditor(Terms(0.5, 3600), spot_checks=0.0)
    assert list(auditor.run_pass()) == []
    for number in range(16):
        deployment.receive(number)
    sampled = [each.receipt_index for each in auditor.run_pass()]
    with deployment.ledger.watch(0) as entries:
        done = fold_obligations([entry.entry for entry in entries], TrustedKeys.load(deployment.trusted))
    assert [one.index for one in done.judged()] == sampled
    assert (len(done.owed()), len(done.undrawn())) == (0, 0)
    assert done.completeness().is_kept
    reasons = [verdict.document.reason or "" for verdict in deployment.ledger.verdicts()]
    assert all("drawn at rate 0.5 by entry 17" in reason for reason in reasons)
    assert kinds(deployment).count("draw") == 1
    assert list(auditor.run_pass()) == list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass()) == []


class LosingAppender(Appender):
    """Its first draws are lost on the way to the ledger, or refused, which look alike here."""

    lost: ClassVar[list[Envelope]] = []

    def append(self, envelope: Envelope) -> int:
        if isinstance(read_document(envelope), Draw) and len(self.lost) < 3:
            self.lost.append(envelope)
            raise Unavailable("the connection broke")
        return super().append(envelope)


def test_a_ledger_that_loses_a_draw_gets_the_same_one_again_and_not_another_to_choose_from(
    deployment: Deployment,
) -> None:
    LosingAppender.lost.clear()
    list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass())
    for number in range(8):
        deployment.receive(number)
        if number >= 5:
            with pytest.raises(Unavailable):  # a new auditor each time, with a longer log
                list(deployment.auditor(spot_checks=0.0, appender=LosingAppender).run_pass())
    list(deployment.auditor(spot_checks=0.0).run_pass())
    with deployment.ledger.watch(0) as entries:
        drawn = [entry.envelope for entry in entries if entry.kind == "draw"]
    assert {envelope.to_bytes() for envelope in LosingAppender.lost} == {drawn[0].to_bytes()}


@pytest.mark.parametrize("shown", [draw(7, bytes(32)), draw(2, bytes(32))])
def test_a_log_without_the_entries_of_a_kept_draw_gets_no_other(deployment: Deployment, shown: Draw) -> None:
    list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass())
    deployment.receive(0)
    deployment.folder.keep_draw(kept := signed(shown))
    with pytest.raises(BrokenLog):
        list(deployment.auditor(spot_checks=0.0).run_pass())
    assert (deployment.folder.kept_draw(), kinds(deployment).count("draw")) == (kept, 0)


class AcknowledgingAppender(Appender):
    """Its ledger acknowledges draws and second verdicts that it does not append."""

    def append(self, envelope: Envelope) -> int:
        document = read_document(envelope)
        second = isinstance(document, Verdict) and document.outcome == "CONSISTENT"
        return 1 if second or isinstance(document, Draw) else super().append(envelope)


def test_a_draw_is_kept_until_it_is_read_from_the_log(deployment: Deployment) -> None:
    list(deployment.auditor(Terms(0.5, 3600), spot_checks=0.0).run_pass())
    deployment.receive(0)
    with pytest.raises(BrokenLog):
        list(deployment.auditor(spot_checks=0.0, appender=AcknowledgingAppender).run_pass())
    kept = deployment.folder.kept_draw()
    list(deployment.auditor(spot_checks=0.0).run_pass())
    with deployment.ledger.watch(0) as entries:
        assert [entry.envelope.to_bytes() for entry in entries if entry.kind == "draw"] == [kept]


def test_verdicts_are_kept_until_they_are_read_from_the_log(deployment: Deployment) -> None:
    index = deployment.ledger.append(signed(foreign_receipt(0)), content(0)).index
    for _ in range(2):
        with pytest.raises(BrokenLog):
            list(deployment.auditor(appender=AcknowledgingAppender).run_pass())
        assert outcomes(deployment) == [(index, "SAME")]
    list(deployment.auditor().run_pass())
    assert outcomes(deployment) == [(index, "SAME"), (index, "CONSISTENT")]


@pytest.mark.parametrize("appender", [LosingAppender, OneVerdictAppender])
def test_draws_and_verdicts_by_a_key_that_was_replaced_meanwhile_are_signed_again(
    tmp_path: Path, appender: type[Appender]
) -> None:
    LosingAppender.lost.clear()
    new = SigningKey.generate("auditor")
    with opened_deployment(tmp_path, (KEYS["operator"], new)) as deployment:
        list(deployment.auditor(Terms(0.5, 3600)).run_pass())
        index = deployment.ledger.append(signed(foreign_receipt(0)), content(0)).index
        with pytest.raises((Unavailable, KeyboardInterrupt)):
            list(deployment.auditor(appender=appender).run_pass())
        (deployment.trusted / RETIRED).mkdir()
        for key in deployment.trusted.glob("auditor-*.pub"):
            if PublicKey.from_pem(key.read_bytes()) != new.public:
                key.rename(deployment.trusted / RETIRED / key.name)
        for _ in range(2):
            list(deployment.auditor(appender=lambda ledger, _, clock: Appender(ledger, new, clock)).run_pass())
            assert outcomes(deployment) == [(index, "SAME"), (index, "CONSISTENT")]
            assert kinds(deployment).count("draw") == 1


def test_auditors_with_shares_judge_every_receipt_once_and_the_first_alone_draws(
    deployment: Deployment, tmp_path: Path
) -> None:
    terms = Terms(0.999999, 3600)
    with HeldFolder(tmp_path / "one") as one, HeldFolder(tmp_path / "two") as two:
        auditors = [
            deployment.auditor(terms, 0.0, folder=folder, share=Share(part, 2)) for part, folder in ((2, two), (1, one))
        ]
        assert [list(auditor.run_pass()) for auditor in auditors] == [[], []]
        receipts = [deployment.receive(number) for number in range(6)]
        assert list(auditors[0].run_pass()) == []
        examined = [[each.receipt_index for each in auditor.run_pass()] for auditor in reversed(auditors)]
    assert examined == [[each for each in receipts if each % 2 == part] for part in (0, 1)]
    assert (kinds(deployment).count("audit_policy"), kinds(deployment).count("draw")) == (1, 1)


def test_an_auditor_killed_between_a_verdict_and_its_halt_alone_owes_the_halt(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.receive(0)
    deployment.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(appender=InterruptedAppender).run_pass())
    with HeldFolder(tmp_path / "two") as two:
        assert list(deployment.auditor(folder=two, share=Share(2, 2)).run_pass()) == []
        assert deployment.ledger.halt_state().halts == ()
    assert list(deployment.auditor(share=Share(1, 2)).run_pass()) == []
    (halt,) = deployment.ledger.halt_state().halts
    assert (outcomes(deployment), halt.verdict_index) == ([(0, "DEVIATION")], 1)


@pytest.mark.parametrize("lie", [{"spec_decode": OFF}, {"base_cid": cid(b"another")}, {"receipt_id": receipt_id(1)}])
def test_a_halt_is_of_the_receipt_that_the_log_is_proven_to_hold(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]
) -> None:
    deployment.receive(0)
    deployment.replays.lies = {receipt_id(0)}
    with pytest.raises(KeyboardInterrupt):
        list(deployment.auditor(appender=InterruptedAppender).run_pass())
    forged = Entry(0, Envelope.from_bytes(signed(receipt(0, **lie)))).to_bytes()
    monkeypatch.setattr(LedgerClient, "entry", lambda *_: LogEntry(forged))
    with pytest.raises(BrokenLog):
        list(deployment.auditor().run_pass())
    assert deployment.ledger.halt_state().halts == ()


def test_a_receipt_that_makes_its_examination_fail_is_given_up_and_stays_without_a_verdict(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.receive(0)
    deployment.receive(1)
    for attempt in range(2):
        deployment.replays.failure = RuntimeError("out of memory")
        with HeldFolder(tmp_path / "own", max_attempts=2) as folder, pytest.raises(RuntimeError):
            list(deployment.auditor(folder=folder).run_pass())
        assert len(deployment.replays.asked) == attempt + 1
    deployment.replays.failure = None
    with HeldFolder(tmp_path / "own", max_attempts=2) as folder:
        auditor = deployment.auditor(folder=folder)
        assert [each.receipt_index for each in auditor.run_pass()] == [1]
        assert auditor.remaining == (0,)
    (tmp_path / "own" / "attempts.json").write_text("[damaged")
    with HeldFolder(tmp_path / "own", max_attempts=2) as folder:
        assert [each.receipt_index for each in deployment.auditor(folder=folder).run_pass()] == [0]


@pytest.mark.parametrize("damaged", ["[damaged", "[" * 100_000], ids=["cut off", "deep"])
def test_damaged_files_of_a_folder_count_as_lost(tmp_path: Path, damaged: str) -> None:
    for name in ("attempts.json", "fold.json"):
        (tmp_path / name).write_text(damaged)
    with HeldFolder(tmp_path) as folder:
        (tmp_path / "left.json").write_text(damaged)
        assert (folder.given_up, folder.kept_fold(), folder.left_by_holder()) == (frozenset(), None, frozenset())


def test_files_that_cannot_be_deleted_are_an_error_of_the_folder_which_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(FolderError):
            HeldFolder(tmp_path / "own").try_hold()
    with HeldFolder(tmp_path / "own") as folder:
        assert folder.held
        monkeypatch.setattr(Path, "unlink", refuse)
        for forget in (folder.forget_draw, folder.forget_verdicts):
            with pytest.raises(FolderError):
                forget()


def test_an_auditor_whose_key_is_not_trusted_yet_waits_for_trust(deployment: Deployment) -> None:
    deployment.receive(0)
    (key,) = deployment.trusted.glob("auditor-*.pub")
    trusted = key.read_bytes()
    key.unlink()
    found: list[object] = []

    def trust() -> None:
        found.append(outcomes(deployment))
        key.write_bytes(trusted)

    stop, called = stopped_after(1)
    follow(deployment.auditor(), stop, 0.01, called, on_wait=trust)
    assert (found[0], found[-1]) == ([], [(0, "EXACT")])


def test_each_cause_of_a_wait_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    causes = [
        *[Unavailable("no ledger")] * 2,
        *[InvalidArgument("no trust", reason="UNTRUSTED_SIGNATURE")] * 2,
        Unavailable("no ledger"),
    ]

    class Waiting:
        backlog = None

        def run_pass(self) -> Iterator[None]:
            if not causes:
                stop.set()
                return iter(())
            raise causes.pop(0)

    follow(cast(Auditor, Waiting()), stop, 0.0, lambda _: None, lambda _: None)
    assert [str(record.args[0]) for record in caplog.records if record.args] == ["no ledger", "no trust", "no ledger"]


def test_a_new_auditor_goes_on_from_the_fold_that_the_one_before_has_kept(deployment: Deployment) -> None:
    for number in range(4):
        deployment.receive(number)
    list(deployment.auditor().run_pass())
    end = deployment.auditor().backlog.position
    assert end >= 4  # nothing was read yet: it is what was kept
    deployment.receive(4)
    auditor = deployment.auditor()
    assert [each.receipt_index for each in auditor.run_pass()] == [len(kinds(deployment)) - 2]
    assert deployment.replays.asked.count(receipt_id(0)) == 1


def test_a_fold_that_is_not_of_the_signed_log_is_told_at_once(deployment: Deployment) -> None:
    deployment.receive(0)
    list(deployment.auditor().run_pass())
    kept = deployment.folder.kept_fold()
    size = kept["frontier"]["size"]
    deployment.folder.keep_fold(kept | {"frontier": {"size": size, "hashes": ["00" * 32] * size.bit_count()}})
    with pytest.raises(BrokenLog):
        list(deployment.auditor().run_pass())
    deployment.folder.keep_fold(kept | {"frontier": {"size": 1 << 20, "hashes": ["00" * 32]}})
    with pytest.raises(BrokenLog):  # the log has become shorter than it was
        list(deployment.auditor().run_pass())


def test_a_fold_that_cannot_be_read_is_folded_again(deployment: Deployment) -> None:
    for number, junk in enumerate(([], {}, {"version": 1}, "junk", 7)):
        index = deployment.receive(number)
        deployment.folder.keep_fold(junk)  # type: ignore[arg-type]
        assert [each.receipt_index for each in deployment.auditor().run_pass()] == [index]
