"""Lies and faults of another engine: its answer ends, and the receipt is of the tokens and text that were returned."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from ledger.encoding.stream_digest import token_digest
from tests.integration.generation.engines.conftest import KINDS, Engines


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broken_answer_ends_with_an_error_and_a_receipt_of_what_was_returned(
    engines: Engines, kind: str
) -> None:
    await engines.start(kind)
    for fault in ("drop", "short", "text", "ids", "many", "cut", "stopped"):
        engines.fast.fault = fault
        receipt = await engines.signed(max_tokens=5)
        assert (receipt.output.finish_reason, receipt.spec_decode.tokens_proposed) == ("error", None), fault


def with_members(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A twist: another value at a dotted path, in those events that have it."""

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        *outer, last = path.split(".")
        place: Any = event
        for name in outer:
            if isinstance(place, list) and place:
                place = place[int(name)]
            else:
                place = place.get(name) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place:
            place[last] = value
        return event

    return twist


def with_literal(path: str, literal: str) -> Callable[[dict[str, Any]], str]:
    """A twist whose value is no JSON that Python would write, after a first event, which accepts the request."""
    set_mark, events = with_members(path, "@@"), count()
    return lambda event: json.dumps(set_mark(event) if next(events) else event).replace('"@@"', literal)


HUGE = 10**30
LIES = [
    *(("vllm", with_members("choices.0.token_ids", [wrong])) for wrong in (-1, HUGE, 2**32 - 1, 400, None, "5", 1.5)),
    *(("sglang", with_members("output_ids", wrong)) for wrong in ([-1], [2**32 - 1], [5, 6, 7, 8, 9, 10], "ids", None)),
    *(("llama-server", with_members("tokens", wrong)) for wrong in ([-1], [400], {}, [[5]], [True])),
    ("vllm", with_literal("choices.0.text", '"\\ud800"')),
    ("vllm", with_literal("choices.0.text", "NaN")),
    ("vllm", with_literal("choices.0.text", "[" * 5000)),
    ("vllm", with_members("choices.0.text", "many words " * 1000)),
    ("vllm", with_members("choices", {"a": 1})),
    *(("vllm", with_members("metrics.speculative_decoding.num_draft_tokens", wrong)) for wrong in (HUGE, -1, "5", 1.5)),
    *(("vllm", with_members("metrics.speculative_decoding.num_accepted_draft_tokens", wrong)) for wrong in (-3, "1")),
    *(("vllm", with_members("usage.prompt_tokens_details.cached_tokens", wrong)) for wrong in ("1", HUGE, [1])),
    *(("llama-server", with_members("timings.draft_n", wrong)) for wrong in ("5", HUGE, -1, [0])),
    ("sglang", with_members("meta_info.spec_num_proposed_drafts", "5")),
    *(("vllm", with_members("choices.0.finish_reason", wrong)) for wrong in ([], "because", 5)),
    *(("llama-server", with_members("tokens_predicted", wrong)) for wrong in ("5", HUGE)),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_an_upstream_says_the_call_ends_and_its_receipt_is_of_what_was_returned(
    engines: Engines, kind: str
) -> None:
    await engines.start(kind)
    for number, lie in enumerate(lie for liar, lie in LIES if liar == kind):
        engines.fast.twist = lie
        assert (await engines.ended())[0] in ("error", "length"), number


async def test_a_stop_reason_that_no_request_asked_for_is_none(engines: Engines) -> None:
    await engines.start()
    reason: Any = None
    engines.fast.ends_after = 2

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        for choice in event["choices"]:
            if "finish_reason" in choice:
                choice["stop_reason"] = reason
        return event

    engines.fast.twist = twist
    for reason in ("", "x" * 5000, "another", 7, True, [], HUGE):
        receipt = await engines.signed(max_tokens=5)
        assert receipt.output.stop_reason is None, reason


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize(("fault", "ends_after"), [("stopped", None), (None, 2)], ids=["no end", "an end"])
async def test_a_complete_constraint_ends_an_answer_with_or_without_an_end_token(
    engines: Engines, fault: str | None, ends_after: int | None, weights: bool
) -> None:
    await engines.start("sglang", weights=weights)
    engines.fast.fault, engines.fast.ends_after = fault, ends_after
    assert await engines.ended(structured_outputs={"regex": "a+"}) == ("stop", 2 + (fault is None))


async def test_a_text_that_lacks_its_last_word_is_no_text_of_its_ids(engines: Engines) -> None:
    """It reports an end by the model, but the last token is a word."""
    await engines.start()
    sent: list[int] = []

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        for choice in event["choices"]:
            choice["text"] = choice["text"] if len(sent) < 4 else ""
            sent.extend(choice["token_ids"])
            if "finish_reason" in choice:
                choice["finish_reason"] = "stop"
        return event

    engines.fast.twist = twist
    assert await engines.ended() == ("error", 5)


async def test_a_log_probability_that_is_no_number_ends_the_answer(engines: Engines) -> None:
    await engines.start()
    logprob = ""

    def twist(event: dict[str, Any]) -> str:
        for choice in event["choices"]:
            if ids := choice["token_ids"]:
                told = -0.5 if "prompt_token_ids" in choice else "@@"  # the first event accepts the request
                choice["logprobs"] = {
                    "tokens": [f"token_id:{ids[0]}"], "token_logprobs": [told], "top_logprobs": [{}]
                }  # fmt: skip
        return json.dumps(event).replace('"@@"', logprob)

    engines.fast.twist = twist
    for logprob in ("NaN", "1e999", "null", '"x"', "Infinity"):
        assert await engines.ended(logprobs=1) == ("error", 1), logprob


@pytest.mark.parametrize("lie", [
    {"logprob": 3.5}, {"logprob": -1e308}, {"id": 5}, None,
])  # fmt: skip
async def test_log_probabilities_that_are_not_those_of_the_tokens_end_the_answer(
    engines: Engines, lie: dict[str, Any] | None
) -> None:
    await engines.start("llama-server")
    engines.fast.gap = 0.5
    assert (await engines.ended(logprobs=2))[0] == "length"

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        told = event.get("completion_probabilities", [])
        return event | {"completion_probabilities": [each | lie for each in told] if lie else told * 2}

    engines.fast.twist = twist
    assert (await engines.ended(logprobs=2))[0] == "error"
    engines.fast.twist = lambda event: {name: value for name, value in event.items() if "probab" not in name}
    assert (await engines.ended(logprobs=2))[0] == "error"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_never_ends_does(engines: Engines, kind: str) -> None:
    await engines.start(kind, engine_silence_seconds=0.1)
    for fault in ("idle", "comments", "line"):
        engines.fast.fault = fault
        assert await engines.ended() == ("error", 2), fault


async def test_an_answer_that_sglang_ends_with_an_error_lacks_the_token_that_it_made_up(engines: Engines) -> None:
    await engines.start("sglang")

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        if len(event["output_ids"]) > 2:
            event["meta_info"]["finish_reason"] = {"type": "abort", "message": "no memory", "status_code": 500}
        return event

    engines.fast.twist = twist
    assert await engines.ended() == ("error", 2)


async def test_an_engine_takes_back_nothing_that_it_has_said(engines: Engines) -> None:
    await engines.start("sglang")
    other = engines.fast.vocabulary[0]

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        if len(event["output_ids"]) > 2:
            event["output_ids"][0] = other
        return event

    engines.fast.twist = twist
    assert await engines.ended() == ("error", 2)


async def test_text_that_came_without_a_token_is_not_asked_for_again(engines: Engines) -> None:
    await engines.start(weights=False)
    engines.fast.fault = "drop"

    def twist(event: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [each | {"token_ids": []} for each in event["choices"]]}

    engines.fast.twist = twist
    assert ((await engines.ended())[0], len(engines.fast.bodies)) == ("error", 1)


async def test_an_answer_that_ends_within_a_character_is_kept(engines: Engines) -> None:
    await engines.start("llama-server")
    engines.fast.vocabulary = engines.tokenizer.encode("猫")[:1]
    engines.fast.tail = "\N{REPLACEMENT CHARACTER}"
    engines.fast.twist = lambda event: event | {"tokens": []}
    assert await engines.ended(max_tokens=1) == ("length", 1)


@pytest.mark.parametrize(("differs_at", "kept"), [(None, 9), (3, 9), (1, 3)])
async def test_a_stream_without_all_ids_goes_on_as_the_whole_answer_does(
    engines: Engines, differs_at: int | None, kept: int
) -> None:
    """Its caller has three tokens then: a whole answer that begins otherwise is of no use."""
    await engines.start("llama-server")

    def without_the_fourth(event: dict[str, Any]) -> dict[str, Any]:
        engines.fast.differs_at = differs_at if event["stop"] else None
        return event | ({"tokens": []} if event["tokens_predicted"] == 4 else {})

    engines.fast.twist = without_the_fourth
    receipt = await engines.signed(max_tokens=9)
    assert (receipt.output.finish_reason, receipt.output.tokens) == ("length" if kept == 9 else "error", kept)
    engines.fast.differs_at = differs_at if kept == 9 else None
    assert receipt.output.stream_digest == token_digest(
        engines.fast.tokens(engines.tokenizer.encode("The ledger keeps"), 0, 9)[:kept]
    )


async def test_an_engine_that_breaks_off_while_the_whole_is_asked_for_keeps_what_was_returned(
    engines: Engines,
) -> None:
    await engines.start("llama-server")

    def without_the_fourth(event: dict[str, Any]) -> dict[str, Any]:
        if event["stop"]:
            engines.fast.fault, engines.fast.after = "drop", 0
        return event | ({"tokens": []} if event["tokens_predicted"] == 4 else {})

    engines.fast.twist = without_the_fourth
    assert await engines.ended(max_tokens=9) == ("error", 3)
