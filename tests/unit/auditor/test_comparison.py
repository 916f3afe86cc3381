"""Receipted stream against replayed stream."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.documents.receipt import OutputPart, Receipt
from ledger.encoding.stream_digest import StreamDigest
from services.auditor.examination import Replayed, compare, replay_limit
from tests.unit.ledger.builders import receipt

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


def test_the_same_tokens_and_digest_are_exact() -> None:
    finding = compare(receipted(), TOKENS, replay())
    assert (finding.outcome, finding.tokens_compared, finding.passed) == ("EXACT", 4, True)
    assert finding.off_seconds == 0.5


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
