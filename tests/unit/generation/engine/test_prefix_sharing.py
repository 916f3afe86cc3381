"""Sequences that begin alike and run together are computed once, whatever happens to the computing sequence."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.drafter import Drafter
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import TokenDecoder
from services.generation.target.blocks import BLOCK
from tests.examples import examples
from tests.fakes.drafters import LetterDecoder, LyingDrafter, ReadingDrafter
from tests.fakes.engine_runs import CHEAP_ROWS, Collected, run
from tests.fakes.table_target import ContextTarget

VOCAB = 64
LAYERS = (1, 3)
NEW = 5  # tokens that a request asks for
NOTHING_SHARED = EngineSettings(max_sequences=1, prefix_caching=False)


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def asked(name: str, prompt: tuple[int, ...], choice: int = 0, **members: object) -> EngineRequest:
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=NEW, ignore_eos=True)
    return EngineRequest(name, prompt, sampling, choice, **members)  # type: ignore[arg-type]


def choices(prompt: tuple[int, ...], count: int = 16, **members: object) -> list[EngineRequest]:
    return [asked("r", prompt, choice, **members) for choice in range(count)]


def alone(request: EngineRequest) -> tuple[object, ...]:
    target = ContextTarget(vocab=VOCAB, adapters=("red", "blue"))
    bare = replace(request, method="off", reuse=False)
    return signature(run(target, [bare], settings=NOTHING_SHARED).outcomes[request.key])


def signature(outcome: Outcome) -> tuple[object, ...]:
    return outcome.token_ids, outcome.stream_digest, outcome.finish_reason


def checked(requests: list[EngineRequest], target: ContextTarget | None = None, **options: object) -> ContextTarget:
    """Run them all; each must come out as alone."""
    target = target or ContextTarget(vocab=VOCAB, adapters=("red", "blue"))
    collected = run(target, requests, **options)  # type: ignore[arg-type]
    for request in requests:
        assert signature(collected.outcomes[request.key]) == alone(request), request
    return target


@pytest.mark.slow
@pytest.mark.parametrize("length", [1500, 1472, 1473, 200, 50])
def test_sixteen_choices_cost_the_prompt_once_and_a_row_for_each(length: int) -> None:
    target = checked(choices(text(length)))
    assert target.rows == length + 15 + 16 * (NEW - 1)


def test_without_prefix_caching_every_choice_is_computed() -> None:
    target = checked(choices(text(300)), settings=EngineSettings(prefix_caching=False))
    assert target.rows == 16 * (300 + NEW - 1)


def test_requests_that_go_on_differently_share_what_they_begin_with() -> None:
    trunk = text(500)
    requests = [asked(f"r{n}", (*trunk, *text(40, n + 1))) for n in range(8)]
    target = checked(requests)
    assert target.rows == 540 + 7 * 40 + 8 * (NEW - 1)


@pytest.mark.parametrize(
    "apart",
    [lambda n: {"tenant": f"t{n}"}, lambda n: {"adapter": (None, "red", "blue")[n]}, lambda n: {"reuse": n == 0}],
    ids=["tenants", "adapters", "replays"],
)
def test_those_who_may_not_share_do_not_wait_for_each_other(apart: Callable[[int], dict[str, object]]) -> None:
    requests = [asked(f"r{n}", text(200), **apart(n)) for n in range(3)]
    target, collected = ContextTarget(vocab=VOCAB, adapters=("red", "blue")), Collected()
    core = core_of(target, max_rows=1000, prefill_rows=1000)
    for request in requests:
        core.add(request, collected.sink)
    core.step()
    assert target.rows == 600
    while not core.idle:
        core.step()
    assert [signature(collected.outcomes[request.key]) for request in requests] == [alone(r) for r in requests]
    assert all(outcome.metrics.cached_prompt_tokens == 0 for outcome in collected.outcomes.values())


def core_of(target: ContextTarget, drafters: dict[str, Drafter] | None = None, **bounds: float) -> EngineCore:
    return EngineCore(target, drafters or {}, LetterDecoder, CHEAP_ROWS, EngineSettings(**bounds), lambda: 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["off", "reading"])
def test_what_others_stand_in_needs_no_room_for_one_more(method: str) -> None:
    target, collected = ContextTarget(vocab=VOCAB, blocks=12), Collected()
    core = core_of(target, {"reading": ReadingDrafter(target, 0, LAYERS)})
    for name, prompt in (("first", text(500)), ("second", text(500)), ("stranger", text(500, 7))):
        request = asked(name, prompt, method=method)
        core.add(replace(request, sampling=replace(request.sampling, max_tokens=60)), collected.sink)
        for _ in range(3):
            core.step()
    load = core.load()
    assert (load.running, load.waiting, load.preemptions) == (2, 1, 0)
    while not core.idle:
        core.step()
    assert core.load().preemptions == 0
    assert collected.outcomes["stranger", 0].token_ids[:NEW] == alone(asked("stranger", text(500, 7)))[0]


@pytest.mark.parametrize("steps", [1, 2, 5, 6, 7])
def test_when_the_one_that_computes_is_cancelled_the_next_goes_on(steps: int) -> None:
    requests = [asked(name, text(1500)) for name in ("goes", "a", "b", "c")]
    target = ContextTarget(vocab=VOCAB)
    collected = run(target, requests, cancellations={steps: "goes"})
    assert [signature(collected.outcomes[r.key]) for r in requests[1:]] == [alone(r) for r in requests[1:]]
    assert target.rows <= 1500 + BLOCK + 3 + 4 * NEW  # what was in a block that was not full is computed again


def test_when_the_one_that_computes_fails_the_next_goes_on() -> None:
    class Broken(LetterDecoder):
        def feed(self, token: int) -> str:
            raise RuntimeError("no such letter")

    decoders: list[type[TokenDecoder]] = [Broken, *[LetterDecoder] * 3]
    requests, target = choices(text(190), 4), ContextTarget(vocab=VOCAB)
    collected = run(target, requests, decoder=lambda _: decoders.pop(0)())
    assert collected.outcomes["r", 0].finish_reason == "error"
    assert [signature(collected.outcomes[r.key]) for r in requests[1:]] == [alone(r) for r in requests[1:]]


def test_one_that_is_preempted_takes_over_again() -> None:
    target = ContextTarget(vocab=VOCAB, blocks=5)
    collected = run(target, requests := [asked(f"r{n}", text(3 * BLOCK - 6 - n)) for n in range(4)])
    assert collected.preemptions > 0
    assert [signature(collected.outcomes[request.key]) for request in requests] == [alone(r) for r in requests]


def test_a_drafter_s_features_are_shared_with_those_that_read_the_same_layers() -> None:
    target = ContextTarget(vocab=VOCAB)
    reading = ReadingDrafter(target, 0, LAYERS)
    checked(choices(text(500), method="reading"), target, drafters={"reading": reading})
    assert not reading.faults
    assert target.rows < 500 + 16 * (1 + 4 * NEW)


def test_what_was_taken_over_is_passed_on_with_its_features() -> None:
    target, collected = ContextTarget(vocab=VOCAB), Collected()
    reading = ReadingDrafter(target, 0, LAYERS)
    core, asking = core_of(target, {"reading": reading}), choices(text(500), 2, method="reading")
    for request in asking:
        request = replace(request, sampling=replace(request.sampling, max_tokens=80))
        core.add(request, collected.sink)
    while not core.idle:
        core.step()
    for choice in range(2):
        tokens = (*text(500), *collected.outcomes["r", choice].token_ids)
        core.add(asked(f"turn {choice}", tokens, method="reading"), collected.sink)
        while not core.idle:
            core.step()
        assert collected.outcomes[f"turn {choice}", 0].metrics.cached_prompt_tokens >= 576
    assert not reading.faults


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_features_are_kept_in_so_many_bytes(blocks: int) -> None:
    target, collected = ContextTarget(vocab=VOCAB), Collected()
    reading = ReadingDrafter(target, 0, LAYERS)
    most = blocks * BLOCK * len(LAYERS) * 4 + 10
    core = core_of(target, {"reading": reading}, feature_bytes=most)
    for number in range(6):
        core.add(asked(f"r{number}", text(300), method="reading"), collected.sink)
        while not core.idle:
            core.step()
            assert core._sharing.features.bytes <= most
    assert not reading.faults
    reused = [collected.outcomes[f"r{number}", 0].metrics.cached_prompt_tokens for number in range(6)]
    assert reused == [0] + 5 * [blocks * BLOCK]
    assert [collected.outcomes[f"r{n}", 0].token_ids for n in range(6)] == 6 * [alone(asked("r0", text(300)))[0]]


battery = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def requests_of(rng: random.Random) -> list[EngineRequest]:
    """Prompts that are cut from few trunks: many begin alike, for any length; some are choices of one request."""
    trunks = [text(300, rng.randrange(2)) for _ in range(2)]
    found = []
    for number in range(rng.randrange(2, 12)):
        prompt = (
            *rng.choice(trunks)[: rng.choice((1, 17, 63, 64, 65, 100, 190, 256))],
            *text(rng.choice((0, 0, 30)), number),
        )
        request = asked(
            f"r{number}", prompt, method=rng.choice(("off", "off", "reading", "other", "lying", "lookahead")),
            tenant=rng.choice(("a", "a", "a", "b")), adapter=None, reuse=rng.random() < 0.9,
        )  # fmt: skip
        sampling = replace(request.sampling, temperature=rng.choice((0.0, 1.0)), max_tokens=rng.randrange(1, 90))
        count = rng.choice((1, 1, 4))
        found += [replace(request, sampling=sampling, choice=choice) for choice in range(count)]
    return found


@given(seed=st.integers(0, 2**32))
@battery
def test_no_schedule_cancellation_or_preemption_changes_a_token(seed: int) -> None:
    check(seed)


def check(seed: int) -> int:
    """Returns how many rows less were computed than without sharing."""
    rng = random.Random(seed)
    requests = requests_of(rng)
    target = ContextTarget(vocab=VOCAB, blocks=rng.choice((7, 12, 100)))
    readers = [ReadingDrafter(target, seed, layers) for layers in ((1, 3), (2,))]
    drafters: dict[str, Drafter] = {
        "reading": readers[0], "other": readers[1], "lying": LyingDrafter(seed, VOCAB),
        "lookahead": LookaheadDrafter(),
    }  # fmt: skip
    schedule = EngineSettings(
        max_sequences=rng.choice((2, 8, 32)), max_rows=rng.choice((40, 64, 256)),
        prefill_rows=rng.choice((1, 7, 64, 128)), feature_bytes=rng.choice((0, 2000, 1 << 20)),
        prefix_share=rng.choice((0.0, 0.5, 1.0)),
    )  # fmt: skip
    late = rng.choice((1, 10, 100))
    arrivals = [rng.randrange(late) for _ in requests]
    cancelled = {rng.randrange(1, 40): rng.choice(requests).request_id for _ in range(rng.randrange(3))}
    collected = run(target, requests, drafters=drafters, settings=schedule, arrivals=arrivals, cancellations=cancelled)
    for request in requests:
        outcome = collected.outcomes[request.key]
        expected = alone(request)
        if outcome.finish_reason == "cancelled":
            assert outcome.token_ids == expected[0][: len(outcome.token_ids)]  # type: ignore[index]
        else:
            assert signature(outcome) == expected, (request, schedule)
    assert [reader.faults for reader in readers] == [[], []]
    return sum(outcome.metrics.cached_prompt_tokens for outcome in collected.outcomes.values())
