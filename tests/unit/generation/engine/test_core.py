"""The step loop: how sequences start, stream and end, and refusals."""

import ctypes
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import MARGIN
from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.engine import EngineThread
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineFull, EngineRequest, InvalidRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import this_machine
from services.generation.target.kernels.team_loop import float_mode
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.drafters import LetterDecoder, LyingDrafter
from tests.fakes.engine_runs import CHEAP_ROWS, Collected, run, submit
from tests.fakes.table_target import TableTarget

VOCAB = 8


NEXT = 5.0 * np.roll(np.eye(VOCAB, dtype=np.float32), 1, axis=1)
"""After token t comes t + 1, round the vocabulary of 8."""


def counting(**options: Any) -> TableTarget:
    return TableTarget(NEXT, **options)


def request(prompt: tuple[int, ...] = (0,), method: str = "off", **sampling: Any) -> EngineRequest:
    return EngineRequest("r", prompt, SamplingParams(**sampling), method=method)


def outcome(target: TableTarget, asked: EngineRequest, **options: Any) -> Any:
    return run(target, [asked], **options).outcomes[asked.key]


LOGITS = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32)


def sampled(method: str, count: int) -> Any:
    """The outcome of a target whose logits are always LOGITS."""
    target = TableTarget(np.tile(LOGITS, (VOCAB, 1)), context=2**15)
    drafters = {"lookahead": LookaheadDrafter(), "lying": LyingDrafter(0, VOCAB, bugs=0.0)}
    sampling = SamplingParams(temperature=1.0, seed=9, max_tokens=count)
    asked = EngineRequest("r", (0,), sampling, method=method, k=4, parameters={"window": 0})
    return outcome(target, asked, drafters=drafters)


@pytest.mark.slow
def test_20_000_tokens_follow_the_softmax_and_those_that_were_drafted_are_the_same() -> None:
    tokens = sampled("off", 20_000).token_ids
    expected = np.exp(LOGITS.astype(np.float64))
    expected *= 20_000 / expected.sum()
    missed = np.bincount(tokens, minlength=VOCAB) - expected
    assert (missed**2 / expected).sum() < 24.32  # one in a thousand of chi-square's, 7 degrees of freedom
    for method in ("lookahead", "lying"):
        drafted = sampled(method, 3_000)
        assert drafted.token_ids == tokens[:3_000]
        assert drafted.metrics.num_accepted_tokens > 75


def test_the_end_of_sequence_ends_it_and_has_no_text() -> None:
    done = outcome(counting(eos=(4,)), request(max_tokens=50))
    assert done.token_ids == (1, 2, 3, 4)
    assert (done.finish_reason, done.stop_reason, done.text) == ("stop", None, "bcd")


def test_a_stop_id_and_a_stop_string_are_named_in_the_outcome() -> None:
    by_id = outcome(counting(), request(max_tokens=50, stop_token_ids=(3,)))
    by_string = outcome(counting(), request(max_tokens=50, stop=("cd",)))
    assert (by_id.stop_reason, by_id.token_ids, by_id.text) == (3, (1, 2, 3), "bc")
    assert (by_string.stop_reason, by_string.token_ids, by_string.text) == ("cd", (1, 2, 3), "b")


def test_min_tokens_outlasts_every_stop() -> None:
    done = outcome(counting(eos=(2,)), request(max_tokens=30, min_tokens=7, stop=("bc",)))
    assert len(done.token_ids) >= 7


def test_logprobs_come_with_their_tokens() -> None:
    collected = run(counting(), [request(max_tokens=5, logprobs=2, stop=("zz",))])
    chunks = collected.chunks["r", 0]
    pairs = [(token, entry.token_id) for chunk in chunks for token, entry in zip(chunk.token_ids, chunk.logprobs)]  # noqa: B905
    assert pairs == [(token, token) for token in (1, 2, 3, 4, 5)]
    assert all(entry.top[0] == (entry.token_id, entry.logprob) for chunk in chunks for entry in chunk.logprobs)


def test_chunks_add_up_to_the_outcome() -> None:
    collected = run(counting(), [request(max_tokens=40, stop=("habc", "xx"))])
    done, chunks = collected.outcomes["r", 0], collected.chunks["r", 0]
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == done.token_ids


@pytest.mark.parametrize(
    ("broken", "message"), [(np.nan, "hold a NaN"), (np.inf, "hold an infinity"), (-np.inf, "leave no token to choose")]
)
@pytest.mark.parametrize("method", ["off", "lookahead"])
def test_logits_that_are_no_numbers_end_their_own_sequence_with_an_error(
    broken: float, message: str, method: str
) -> None:
    table = np.zeros((VOCAB, VOCAB), np.float32)
    table[2] = broken
    table[0, 4] = table[4, 2] = table[1, 3] = table[3, 3] = 1.0
    sampling, drafted = SamplingParams(max_tokens=9), (4, 2, 2)
    asked = [EngineRequest(str(n), (n,), sampling, method=method, prediction=drafted) for n in (0, 1, 2)]
    outcomes = run(TableTarget(table), asked, drafters={"lookahead": LookaheadDrafter()}).outcomes
    broke, fine, empty = (outcomes[one.key] for one in asked)
    assert (broke.finish_reason, broke.token_ids) == ("error", (4, 2))
    assert message in broke.error
    for each in (broke, fine, empty):
        assert each.metrics.target_passes + each.metrics.num_accepted_tokens == len(each.token_ids)
    assert (fine.finish_reason, len(fine.token_ids)) == ("length", 9)


def test_a_request_that_bans_every_token_ends_with_an_error() -> None:
    banning = request(min_tokens=3, stop_token_ids=tuple(range(VOCAB)))
    done = outcome(counting(), banning)
    assert (done.finish_reason, done.token_ids) == ("error", ())
    assert "after penalties, biases, min_tokens and grammar leave no token" in done.error


def test_an_error_in_decoding_ends_its_own_sequence_only() -> None:
    class Broken(LetterDecoder):
        def feed(self, token: int) -> str:
            raise RuntimeError("no such letter")

    decoders = iter([LetterDecoder(), Broken()])
    asked = [EngineRequest(name, (0,), SamplingParams(max_tokens=5)) for name in ("fine", "broken")]
    collected = run(counting(), asked, decoder=lambda _: next(decoders))
    assert collected.outcomes["fine", 0].finish_reason == "length"
    assert collected.outcomes["broken", 0].finish_reason == "error"
    assert "no such letter" in str(collected.outcomes["broken", 0].error)


def test_a_sequence_is_decoded_as_what_goes_on_after_its_prompt() -> None:
    seen: list[tuple[int, ...]] = []

    class Listening(LetterDecoder):
        def __init__(self, prompt: tuple[int, ...]) -> None:
            super().__init__(prompt)
            seen.append(prompt)

    asked = [EngineRequest(name, prompt, SamplingParams(max_tokens=2)) for name, prompt in (("a", (7, 3)), ("b", (5,)))]
    run(counting(), asked, decoder=Listening)
    assert seen == [(7, 3), (5,)]


def test_margins_are_between_the_two_best_raw_logits() -> None:
    done = outcome(counting(), request(max_tokens=3, logit_bias=((1, -100.0),)))
    assert done.margins == (5.0,) * 3
    assert done.min_margin == 5.0


class BrokenDrafter(Drafter):
    def begin(self, request: EngineRequest) -> Any:
        raise RuntimeError("a drafter's bug")


def test_a_drafter_that_cannot_begin_costs_no_request() -> None:
    done = outcome(counting(), request(max_tokens=5, method="lying"), drafters={"lying": BrokenDrafter()})
    assert done.token_ids == (1, 2, 3, 4, 5)


class CountingDraft(Draft):
    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return TokenTree.chain((tokens[-1], (tokens[-1] + 1) % VOCAB))


class CountingDrafter(Drafter):
    """One token, always right."""

    def begin(self, request: EngineRequest) -> Draft:
        return CountingDraft()


class TimedTarget(TableTarget):
    """Passes take the seconds of `CHEAP_ROWS`."""

    now = 0.0

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        self.now += CHEAP_ROWS.of(len(rows))
        return super().forward(rows, feature_layers)


def timed(*asked: EngineRequest, **options: Any) -> Any:
    """The metrics of the first, whose drafts are right."""
    target = TimedTarget(NEXT)
    found = run(target, asked, drafters={"counting": CountingDrafter()}, clock=lambda: target.now, **options)
    return found.outcomes[asked[0].key].metrics


def test_now_and_then_a_pass_has_no_draft_so_that_its_cost_is_known() -> None:
    metrics = timed(request(max_tokens=1 + 9 + 17, method="counting"))
    assert (metrics.target_passes, metrics.num_drafts) == (1 + 5 + 9, 4 + 8)
    row = MARGIN * (CHEAP_ROWS.of(2) / CHEAP_ROWS.of(1) - 1.0)
    assert metrics.gains == (("counting", pytest.approx(1.0 - row, abs=1e-4)),)


def test_drafts_are_not_judged_before_a_pass_without_any() -> None:
    metrics = timed(request(max_tokens=1 + 4 * 2, method="counting"))
    assert (metrics.num_drafts, metrics.gains) == (4, ())


class SilentDraft(Draft):
    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return TokenTree.root(tokens[-1])


class SilentDrafter(Drafter):
    def begin(self, request: EngineRequest) -> Draft:
        return SilentDraft()


def test_a_method_that_drafts_nothing_is_judged_by_its_own_time_alone() -> None:
    target = TimedTarget(NEXT)
    asked, drafters = request(max_tokens=40, method="silent"), {"silent": SilentDrafter()}
    found = run(target, [asked], drafters=drafters, clock=lambda: target.now)
    assert found.outcomes[asked.key].metrics.gains == (("silent", pytest.approx(0.0, abs=1e-6)),)


def test_while_a_prompt_is_computed_beside_it_a_sequence_still_drafts() -> None:
    """No pass then measures the time of a pass without drafts."""
    beside = replace(request((0,) * 400, max_tokens=1), request_id="b")
    metrics = timed(
        request(max_tokens=200, method="counting"),
        beside,
        settings=EngineSettings(prefill_rows=2, prefix_caching=False),
    )
    assert metrics.num_drafts >= 98


def test_off_stays_off_beside_a_sequence_of_the_same_name() -> None:
    settings, events = EngineSettings(), [Collected(), Collected()]
    drafters = {"lookahead": LookaheadDrafter()}
    core = EngineCore(counting(), drafters, LetterDecoder, CHEAP_ROWS, settings, lambda: 0.0)
    for method, collected in zip(("lookahead", "off"), events, strict=True):
        core.add(request(max_tokens=300, method=method), collected.sink)
    while not core.idle:
        core.step()
    speculated, off = (collected.outcomes["r", 0] for collected in events)
    assert off.token_ids == speculated.token_ids
    assert (off.metrics.target_passes, off.metrics.num_draft_tokens) == (300, 0)
    assert speculated.metrics.target_passes < 300


FIELDS = {
    "prompt": request(prompt=()),
    "token_ids": request(prompt=(VOCAB,)),
    "temperature": request(temperature=float("nan")),
    "top_p": request(top_p=0.0),
    "top_k": request(top_k=-1),
    "min_p": request(min_p=1.5),
    "seed": request(seed=2**64),
    "max_tokens": request(max_tokens=0),
    "min_tokens": request(max_tokens=5, min_tokens=6),
    "stop": request(stop=("",)),
    "stop_token_ids": request(stop_token_ids=(-1,)),
    "logprobs": request(logprobs=21),
    "logit_bias": request(logit_bias=((0, float("inf")),)),
    "presence_penalty": request(presence_penalty=3.0),
    "frequency_penalty": request(frequency_penalty=float("-inf")),
    "repetition_penalty": request(repetition_penalty=0.0),
    "method": request(method="magic"),
    "prediction": replace(request(), prediction=(0, VOCAB)),
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_invalid_request_is_refused_by_field_and_nothing_starts(field: str) -> None:
    core = EngineCore(counting(), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    with pytest.raises(InvalidRequest) as refused:
        core.add(FIELDS[field], Collected().sink)
    assert refused.value.field == field
    assert core.idle


def test_a_request_past_the_context_says_how_much_would_fit() -> None:
    core = EngineCore(counting(context=128), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    with pytest.raises(InvalidRequest, match=r"^max_tokens: .* 28$"):
        core.add(request(prompt=(0,) * 100, max_tokens=29), Collected().sink)


def test_deadlines_of_ended_sequences_are_forgotten() -> None:
    core = EngineCore(counting(), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    core.add(replace(request(max_tokens=1000), request_id="runs", deadline=2e9), Collected().sink)
    for _ in range(300):
        core.add(replace(request(max_tokens=1), deadline=1e9), Collected().sink)
        core.step()
    assert [core.load().running, max(core._deadlines)[0]] == [1, 2e9]
    assert len(core._deadlines) < 270


def test_a_full_queue_refuses_and_takes_again() -> None:
    settings = EngineSettings(max_sequences=1, max_waiting=2)
    core = EngineCore(counting(), {}, LetterDecoder, CHEAP_ROWS, settings, lambda: 0.0)
    collected = Collected()
    for name in "ab":
        core.add(EngineRequest(name, (0,), SamplingParams(max_tokens=2)), collected.sink)
    with pytest.raises(EngineFull):
        core.add(EngineRequest("c", (0,), SamplingParams(max_tokens=2)), collected.sink)
    core.step()
    core.add(EngineRequest("c", (0,), SamplingParams(max_tokens=2)), collected.sink)
    while not core.idle:
        core.step()
    assert {key[0] for key in collected.outcomes} == set("abc")


def test_abandoned_sequences_end_with_what_they_have() -> None:
    core = EngineCore(counting(), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    collected = Collected()
    core.add(request(max_tokens=100), collected.sink)
    for _ in range(5):
        core.step()
    core.abandon(None)
    done = collected.outcomes["r", 0]
    assert (done.finish_reason, done.token_ids) == ("cancelled", (1, 2, 3, 4, 5))
    assert core.idle


FLUSHING = 0x9FC0 if this_machine().triple.startswith("x86") else 1 << 24  # FTZ and DAZ; FZ
UPWARDS = 0x5F80 if this_machine().triple.startswith("x86") else 1 << 22
SUBNORMAL = np.float32(1e-39)


@pytest.fixture
def told() -> Iterator[Callable[[int], None]]:
    """Sets the mode of this thread, which threads that it starts inherit."""
    tell = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compilation.kernels("rows")["set_float_mode"])
    yield tell
    tell(float_mode(this_machine()))


def subnormal_core() -> tuple[EngineCore, EngineRequest]:
    """A request with penalties and biases over logits that are subnormal or need rounding, and a core for it.

    Every row has eight tokens; what is best under penalties is a matter of the subnormals' last bits.
    """
    bits = np.random.default_rng(0).integers(1, 1 << 22, (8, 8), np.int32)
    table = bits.view(np.float32)
    sampling = SamplingParams(
        max_tokens=24, repetition_penalty=1.3, presence_penalty=0.0, frequency_penalty=0.0,
        logit_bias=((3, 1e-39), (5, -1e-39)), ignore_eos=True, logprobs=2,
    )  # fmt: skip
    core = EngineCore(TableTarget(table), {}, LetterDecoder, CHEAP_ROWS, EngineSettings(), lambda: 0.0)
    return core, EngineRequest("r", (1, 2), sampling)


def subnormal_outcome() -> Outcome:
    """In an engine of its own."""
    core, asked = subnormal_core()
    engine, events = EngineThread(core), queue.SimpleQueue[Event]()
    engine.start()
    try:
        submit(engine, asked, events.put)
        while not isinstance(event := events.get(timeout=60), Finished):
            pass
    finally:
        engine.stop()
    return event.outcome


@pytest.mark.parametrize("mode", [FLUSHING, UPWARDS])
def test_the_engines_thread_computes_in_its_own_mode(mode: int, told: Callable[[int], None]) -> None:
    expected = subnormal_outcome()
    told(mode)
    found = subnormal_outcome()
    if mode == FLUSHING:
        assert SUBNORMAL * np.float32(0.5) == 0.0, "this thread was not set"
    told(float_mode(this_machine()))
    assert SUBNORMAL * np.float32(0.5) > 0.0
    assert found.token_ids == expected.token_ids
    assert found.stream_digest == expected.stream_digest
    assert found.margins == expected.margins
    assert expected.finish_reason == "length"
    assert 0.0 < max(expected.margins) < float(np.finfo(np.float32).tiny)


@pytest.mark.parametrize("mode", [FLUSHING, UPWARDS])
def test_each_pass_computes_in_its_own_mode_whatever_a_library_has_set_since(
    mode: int, told: Callable[[int], None]
) -> None:
    expected, collected = subnormal_outcome(), Collected()
    core, asked = subnormal_core()
    core.add(asked, collected.sink)
    while not core.idle:
        told(mode)
        core.step()
    told(float_mode(this_machine()))
    found = collected.outcomes["r", 0]
    assert (found.token_ids, found.margins) == (expected.token_ids, expected.margins)
    assert found.stream_digest == expected.stream_digest
