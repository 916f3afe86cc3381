"""The examination of a receipt, and its comparison with a replay."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from ledger.documents.content import Content
from ledger.documents.receipt import OutputPart, Receipt
from ledger.documents.signed_document import sign_document
from ledger.encoding.commitment import OUTPUT_DOMAIN, OUTPUT_TEXT_DOMAIN, commit, commit_text
from ledger.encoding.stream_digest import StreamDigest
from ledger.encoding.text_forms import cid
from ledger.keys.envelope import Envelope
from services.auditor.audit_error import CannotReplay, EngineAway
from services.auditor.examination import Examiner, Finding, Replayed, compare, replay_limit
from services.auditor.own_engine import OwnEngine, request_of
from services.client.errors import DataLoss
from services.generation.engine.request import EngineBusy
from services.generation.verification import Verifier
from tests.mutations import replace
from tests.unit.auditor.test_backlog import trust
from tests.unit.ledger.builders import BASE, OFF, PROFILE, STRANGER, content, receipt, signed


class ScriptedReplayer:
    """A replayer with given answers or errors, and a record of its calls. With `along` it also computes along a
    record.
    """

    def __init__(self, answer: Replayed | Exception, along: Replayed | Exception | None = None) -> None:
        self._answers = {"decode": answer} if along is None else {"prefill": along, "decode": answer}
        self.ways = tuple(self._answers)
        self.asked: list[tuple[Receipt, Content]] = []
        self.asked_ways: list[str] = []

    def replay(self, receipt: Receipt, content: Content, way: str = "decode") -> Replayed:
        self.asked.append((receipt, content))
        self.asked_ways.append(way)
        if isinstance(answer := self._answers[way], Exception):
            raise answer
        return answer


def faithful(number: int = 0) -> Replayed:
    """The stream that `receipt(number)` commits to."""
    document, kept = receipt(number), content(number)
    return Replayed(kept.output_token_ids, "stop", document.output.stream_digest, PROFILE, 0.25, (0.5, 0.25))


def examined(
    document: Receipt | bytes,
    kept: Content | None,
    replayer: ScriptedReplayer,
    contents: Callable[[str], Content | None] | None = None,
) -> Finding:
    envelope = document if isinstance(document, bytes) else signed(document)
    return Examiner(trust(), contents or (lambda _: kept), replayer).examine(Envelope.from_bytes(envelope))[0]


def test_a_faithful_replay_is_exact() -> None:
    replayer = ScriptedReplayer(faithful())
    assert examined(receipt(), content(), replayer).outcome == "EXACT"
    assert replayer.asked == [(receipt(), content())]


def test_a_speedup_above_the_tokens_of_a_pass_is_told_and_changes_no_outcome() -> None:
    block = replace(receipt().spec_decode, wall_clock_speedup=2.5, speedup_basis="replayed")
    finding = examined(receipt(spec_decode=block), content(), ScriptedReplayer(faithful()))
    assert (finding.outcome, finding.reason) == (
        "EXACT",
        "the receipt claims a speedup of 2.50 at 2.00 tokens per pass",
    )
    undrafted = replace(OFF, wall_clock_speedup=1.25, speedup_basis="replayed")
    finding = examined(receipt(spec_decode=undrafted), content(), ScriptedReplayer(faithful()))
    assert (finding.outcome, finding.reason) == ("EXACT", "the receipt claims a speedup of 1.25 with nothing drafted")
    block = replace(block, wall_clock_speedup=1.25)
    assert examined(receipt(spec_decode=block), content(), ScriptedReplayer(faithful())).reason is None


@pytest.mark.parametrize("way", ["prefill", "decode"])
def test_a_grammar_that_cannot_be_compiled_now_is_replayed_later(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> NoReturn:
        raise EngineBusy("structured_outputs", "took longer than 60 s to compile")

    monkeypatch.setattr(OwnEngine, "_check", lambda *_: None)
    engine = OwnEngine(cast(Verifier, SimpleNamespace(prefill=run, decode=run)))
    with pytest.raises(EngineAway):
        engine.replay(receipt(), content(), way)


@pytest.mark.parametrize("lie", [{"top_p": 0.0}, {"temperature": 1e-300}, {"logit_bias": ((4, 1.0),)}])
def test_parameters_that_no_engine_takes_have_no_reference_pass(lie: dict[str, Any]) -> None:
    target = SimpleNamespace(config=SimpleNamespace(vocab_size=4, eos_token_ids=()), base_cid=BASE)
    rows = np.zeros((2, 4), np.float32)
    engine = OwnEngine(cast(Verifier, SimpleNamespace(target=target, logits=lambda _: iter(rows))))
    kept, fair = replace(content(), output_token_ids=(0, 1)), replace(receipt().sampling, logit_bias=(), top_k=5)
    assert engine.refer(receipt(sampling=fair), kept).base_cid == BASE
    with pytest.raises(CannotReplay):
        engine.refer(receipt(sampling=replace(fair, **lie)), kept)


def test_a_receipt_that_no_trusted_key_signed_is_tampered_and_never_replayed() -> None:
    replayer = ScriptedReplayer(faithful())
    finding = examined(sign_document(receipt(), STRANGER).to_bytes(), content(), replayer)
    assert (finding.outcome, finding.tampered, replayer.asked) == ("UNREPLAYABLE", True, [])


def test_erased_content_is_unreplayable_and_no_pass() -> None:
    finding = examined(receipt(), None, ScriptedReplayer(faithful()))
    assert (finding.outcome, finding.passed, finding.tampered) == ("UNREPLAYABLE", False, False)
    assert finding.reason == "the ledger keeps no content of it"
    envelope = Envelope.from_bytes(signed(receipt()))
    examiner = Examiner(trust(), lambda _: None, ScriptedReplayer(faithful()))
    erased = "the content was erased by entry 7"
    assert [each.reason for each in examiner.examine(envelope, erased)] == [erased]


def test_damaged_content_is_unreplayable_and_no_outage_of_the_ledger() -> None:
    def contents(_: str) -> NoReturn:
        raise DataLoss("the content is damaged", reason="CONTENT_DAMAGED")

    finding = examined(receipt(), None, ScriptedReplayer(faithful()), contents)
    assert (finding.outcome, finding.reason, finding.tampered) == ("UNREPLAYABLE", "the content is damaged", False)


@pytest.mark.parametrize("part", ["prompt_token_ids", "output_token_ids"])
def test_content_that_the_receipt_does_not_commit_to_is_a_finding_of_its_own(part: str) -> None:
    changes: dict[str, Any] = {part: (*getattr(content(), part)[:-1], 99)}
    replayer = ScriptedReplayer(faithful())
    finding = examined(receipt(), replace(content(), **changes), replayer)
    assert (finding.outcome, finding.tampered, replayer.asked) == ("UNREPLAYABLE", True, [])
    assert part in (finding.reason or "")


@pytest.mark.parametrize(
    ("member", "value"),
    [("text_commitment", commit_text(OUTPUT_TEXT_DOMAIN, content().output_salt, "no")), ("stop_reason", 2),
     ("min_margin", 0.5)],
)  # fmt: skip
def test_what_the_receipt_says_beside_its_tokens_has_to_hold_too(member: str, value: object) -> None:
    honest = replace(
        receipt().output,
        text_commitment=commit_text(OUTPUT_TEXT_DOMAIN, content().output_salt, "yes"),
        stop_reason="\n\n",
        min_margin=0.25,
    )
    own = replace(faithful(), text="yes", stop_reason="\n\n")
    assert examined(receipt(output=honest), content(), ScriptedReplayer(own)).outcome == "EXACT"
    changes: dict[str, Any] = {member: value}
    finding = examined(receipt(output=replace(honest, **changes)), content(), ScriptedReplayer(own))
    assert (finding.outcome, finding.tampered) == ("UNREPLAYABLE", True)
    assert member.removesuffix("_commitment") in (finding.reason or "")


def test_an_output_cut_off_before_its_least_length_is_replayed_without_stop_strings() -> None:
    cut = replace(receipt().output, finish_reason="cancelled")
    params = replace(receipt().sampling, min_tokens=3)
    replayed = request_of(receipt(output=cut, sampling=params), content()).sampling
    assert (replayed.max_tokens, replayed.min_tokens, replayed.stop) == (2, 2, ())
    params = replace(params, min_tokens=2)
    assert request_of(receipt(output=cut, sampling=params), content()).sampling.stop == params.stop


def test_a_stream_of_another_profile_than_the_receipt_s_is_no_deviation() -> None:
    other = replace(faithful(), profile_cid=cid(b"another profile"), token_ids=(1, 2, 3))
    finding = examined(receipt(), content(), ScriptedReplayer(other))
    assert (finding.outcome, finding.deviation, finding.tampered) == ("UNREPLAYABLE", None, False)
    assert f"names numerics profile {PROFILE}" in (finding.reason or "")
    assert f"the replay was on {cid(b'another profile')}" in (finding.reason or "")


def along(share: float, replayer: ScriptedReplayer, chance: float = 0.5) -> Finding:
    examiner = Examiner(trust(), lambda _: content(), replayer, share, lambda: chance)
    return examiner.examine(Envelope.from_bytes(signed(receipt())))[0]


def deviating() -> Replayed:
    return replace(faithful(), token_ids=(*faithful().token_ids[:-1], 77))


def test_a_record_that_holds_is_exact_by_prefill_and_nothing_is_decoded() -> None:
    replayer = ScriptedReplayer(CannotReplay("not to be asked"), faithful())
    finding = along(0.02, replayer)
    assert (finding.outcome, finding.verification, finding.replayed_by) == ("EXACT", "prefill", "auditor")
    assert (replayer.asked_ways, finding.off_seconds) == (["prefill"], None)


def test_a_share_is_decoded_anyway() -> None:
    replayer = ScriptedReplayer(faithful(), faithful())
    finding = along(0.6, replayer)
    assert (finding.outcome, finding.verification, replayer.asked_ways) == ("EXACT", "decode", ["decode"])
    assert finding.off_seconds == 0.25


def test_a_deviation_along_the_record_is_decoded_before_it_is_believed() -> None:
    replayer = ScriptedReplayer(deviating(), deviating())
    finding = along(0.0, replayer)
    assert (finding.outcome, finding.verification) == ("DEVIATION", "decode")
    assert replayer.asked_ways == ["prefill", "decode"]


def test_an_engine_that_contradicts_itself_neither_convicts_nor_acquits() -> None:
    finding = along(0.0, ScriptedReplayer(faithful(), deviating()))
    assert (finding.outcome, finding.deviation) == ("UNREPLAYABLE", None)
    assert "contradicts itself (EXACT by decoding; by prefill: position" in (finding.reason or "")


def test_an_engine_that_cannot_replay_a_receipt_says_why() -> None:
    error = CannotReplay("base_cid: the receipt names one, the auditor has loaded another")
    finding = along(0.0, ScriptedReplayer(error, error))
    assert (finding.outcome, finding.reason, finding.verification) == ("UNREPLAYABLE", str(error), None)


NOTHING = replace(content(), output_token_ids=())


def withheld(finish_reason: str, **changes: Any) -> Receipt:
    """A receipt of an output without a token."""
    output = OutputPart(0, _commitment(NOTHING), finish_reason, StreamDigest().hexdigest())
    none = replace(OFF, target_passes=0, mean_acceptance_length=None)
    return receipt(output=replace(output, **changes), spec_decode=none)


def test_an_empty_output_is_compared_with_nothing_and_asks_no_engine() -> None:
    replayer = ScriptedReplayer(faithful())
    silence, speech = (commit_text(OUTPUT_TEXT_DOMAIN, NOTHING.output_salt, text) for text in ("", "yes"))
    finding = examined(withheld("cancelled", text_commitment=silence), NOTHING, replayer)
    assert (finding.outcome, finding.tokens_compared, replayer.asked) == ("EXACT", 0, [])
    forged = withheld("cancelled", stream_digest=receipt().output.stream_digest)
    assert examined(forged, NOTHING, replayer).outcome == "DEVIATION"
    finding = examined(withheld("error", text_commitment=speech), NOTHING, replayer)
    assert (finding.outcome, finding.tampered) == ("UNREPLAYABLE", True)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_empty_output_that_claims_to_be_complete_is_replayed(finish_reason: str) -> None:
    finding = examined(withheld(finish_reason), NOTHING, ScriptedReplayer(faithful()))
    assert (finding.outcome, finding.deviation and finding.deviation.position) == ("DEVIATION", 0)


def _commitment(kept: Content) -> str:
    return commit(OUTPUT_DOMAIN, kept.output_salt, kept.output_token_ids)


TOKENS = (5, 6, 7, 8)
MARGINS = (0.5, 0.25, 0.125, 0.0625)


def digest(tokens: tuple[int, ...], best: float = 1.5) -> str:
    stream = StreamDigest()
    for token in tokens:
        stream.update(token, best, 1.0)
    return stream.hexdigest()


def receipted(tokens: tuple[int, ...] = TOKENS, finish_reason: str = "length", **changes: Any) -> Receipt:
    part: dict[str, Any] = {
        "tokens": len(tokens),
        "commitment": receipt().output.commitment,
        "finish_reason": finish_reason,
        "stream_digest": digest(tokens),
    }
    return receipt(output=OutputPart(**(part | changes)))


def replay(tokens: tuple[int, ...] = TOKENS, finish_reason: str = "length", best: float = 1.5) -> Replayed:
    return Replayed(tokens, finish_reason, digest(tokens, best), "profile", 0.5, MARGINS[: len(tokens)])


def test_the_first_different_token_is_named_with_both_tokens_and_the_replay_s_margin() -> None:
    served = (5, 6, 9, 9)
    finding = compare(receipted(served), served, replay())
    assert finding.outcome == "DEVIATION"
    assert finding.deviation is not None
    assert finding.deviation.to_document() == {
        "position": 2,
        "expected_token": 7,
        "actual_token": 9,
        "expected_margin": 0.125,
        "actual_margin": None,
    }
    assert finding.tokens_compared == 3
    assert "position 2: token 7 with speculation off, token 9 as served" in (finding.reason or "")


def test_the_same_tokens_from_other_logits_deviate() -> None:
    finding = compare(receipted(), TOKENS, replay(best=1.75))
    assert finding.outcome == "DEVIATION"
    assert finding.deviation is not None
    assert finding.deviation.expected_token == finding.deviation.actual_token == 8
    assert "logits differ in bits" in (finding.reason or "")


def test_an_output_that_was_cut_short_deviates_where_it_should_have_gone_on() -> None:
    finding = compare(receipted(TOKENS[:2], "stop"), TOKENS[:2], replay())
    assert finding.deviation is not None
    assert (finding.deviation.position, finding.deviation.expected_token) == (2, 7)
    assert finding.deviation.actual_token is None


def test_an_output_that_went_on_too_long_deviates_where_it_should_have_ended() -> None:
    finding = compare(receipted(), TOKENS, replay(TOKENS[:3], "stop"))
    assert finding.deviation is not None
    assert (finding.deviation.position, finding.deviation.expected_token, finding.deviation.actual_token) == (
        3,
        None,
        8,
    )


def test_another_finish_reason_after_the_same_tokens_deviates() -> None:
    finding = compare(receipted(finish_reason="stop"), TOKENS, replay(finish_reason="length"))
    assert finding.outcome == "DEVIATION"
    assert "ended by stop, the replay by length" in (finding.reason or "")


@pytest.mark.parametrize("finish_reason", ["cancelled", "error"])
def test_an_output_that_was_cut_off_from_outside_is_compared_up_to_there(finish_reason: str) -> None:
    cut = receipted(finish_reason=finish_reason)
    assert replay_limit(cut) == 4
    assert compare(cut, TOKENS, replay(finish_reason="length")).passed


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_output_that_ended_by_itself_is_replayed_to_its_own_end(finish_reason: str) -> None:
    assert replay_limit(receipted(finish_reason=finish_reason)) == 0
