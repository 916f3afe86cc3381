"""The contract: whatever the method, width, batch, chunking, preemption or drafter, the tokens and the stream digest
equal the request's decoded alone, one row at a time, with speculation off.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.generation.drafting.block.block_drafter import BlockDrafter
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.mtp.mtp_drafter import MtpDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.drafter import Drafter
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.families import BY_NAME, LLAMA
from services.generation.target.files.stored_tensor import StoredTensor
from tests.examples import examples
from tests.fakes.drafters import LyingDrafter
from tests.fakes.engine_runs import Collected, run
from tests.fakes.heads import InformedDrafter, block, eagle3, mtp, random_mtp
from tests.fakes.tiny_head import make_tiny_adapters

ONE_ROW = EngineSettings(max_sequences=1, max_rows=1, prefill_rows=1)
METHODS = (
    "off", "lookahead", "lying", "wide lookahead", "eagle3 chain", "eagle3 tree", "block", "narrow block", "mtp chain",
    "mtp tree",
)  # fmt: skip

battery = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
short_battery = settings(battery, max_examples=examples(25))


def parameters(rng: random.Random) -> SamplingParams:
    """A mix of everything that can enter a row: temperatures, filters, penalties, bias, stops."""
    plain = rng.random() < 0.5
    return SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.0, 1.2)),
        top_p=1.0 if plain else rng.choice((1.0, 0.9)),
        top_k=0 if plain else rng.choice((0, 40)),
        min_p=0.0 if plain else rng.choice((0.0, 0.05)),
        seed=rng.randrange(2**53),
        max_tokens=rng.randrange(1, 48),
        min_tokens=0,
        stop=("ab", "xyz") if rng.random() < 0.3 else (),
        stop_token_ids=(rng.randrange(384),) if rng.random() < 0.3 else (),
        ignore_eos=rng.random() < 0.5,
        logit_bias=() if plain else ((rng.randrange(384), 2.0),),
        presence_penalty=0.0 if plain else 0.6,
        frequency_penalty=0.0 if plain else 0.4,
        repetition_penalty=1.0 if plain else 1.2,
    )


def requests_of(rng: random.Random, count: int) -> list[EngineRequest]:
    """Random requests; some prompts repeat themselves, for lookahead to find something, some cross cache blocks."""
    requests = []
    for number in range(count):
        unit = [rng.randrange(384) for _ in range(rng.randrange(1, 9))]
        length = rng.choice((1, 5, 40, 62, 64, 65, 130))
        prompt = (unit * length)[:length] if rng.random() < 0.5 else [rng.randrange(384) for _ in range(length)]
        method = rng.choice(METHODS)
        wide = method == "wide lookahead"
        block_width = {"block": rng.choice((2, 5)), "narrow block": 1}.get(method)
        wide_tree = rng.choice((2, 3, 8))
        width = {"eagle3 chain": 1, "mtp chain": 1, "eagle3 tree": wide_tree, "mtp tree": wide_tree}.get(method)
        shape = {"window": 3, "ngram": 4, "guesses": 4} if wide else {"tree_width": width} if width else {}
        requests.append(
            EngineRequest(
                request_id=f"r{number}",
                prompt=tuple(prompt),
                sampling=parameters(rng),
                choice=rng.randrange(3),
                method="lookahead" if wide else method.split()[0] if width else "block" if block_width else method,
                next_methods=("lying", "lookahead") if method != "off" and rng.random() < 0.3 else (),
                k=rng.choice((None, 1, 4)) if width or block_width else None,
                parameters={"block_width": block_width} if block_width else shape,
                tenant=rng.choice((None, "acme", "globex")),
                priority=rng.choice((-1, 0, 0, 7)),
            )
        )
    return requests


def alone(target: CpuTarget, request: EngineRequest) -> tuple[tuple[int, ...], str, str, str]:
    """Tokens, stream digest, text and finish reason of a request decoded one row at a time, with nothing beside it."""
    off = EngineRequest(request.request_id, request.prompt, request.sampling, request.choice, request.adapter)
    return signature(run(target, [off], settings=ONE_ROW), off)


def signature(collected, request):  # type: ignore[no-untyped-def]
    outcome = collected.outcomes[request.key]
    return outcome.token_ids, outcome.stream_digest, outcome.text, outcome.finish_reason


def drafters_of(target: CpuTarget, seed: int, truth: dict[tuple[str, int], tuple[int, ...]]) -> dict[str, Drafter]:
    """All methods that `requests_of` asks for; half of the heads have bugs."""
    head = InformedDrafter(eagle3(target, seed=seed, copies=seed % 3 > 0), seed, truth, bugs=0.02 * (seed % 2))
    shape: dict[str, Any] = {"from_first": False, "draft_vocab_size": 384, "own_output": False} if seed % 2 else {}
    if seed % 4 == 3:
        shape |= {"taps": 2, "tap_group": 16, "selector_rank": 8, "selector_top": 6}
    drafted = block(target, seed=seed, copies=seed % 3 > 0, **shape)
    family = BY_NAME[target.config.architecture]
    if family.own_head or family is LLAMA:
        inside = mtp(target, seed=seed, copies=seed % 3 > 0, draft_tokens=100 if seed % 2 else None)
    else:  # whose layers have parts that no block has
        inside = eagle3(target, seed=seed + 1, norm_output=True)
    return {
        "lookahead": LookaheadDrafter(),
        "mtp": InformedDrafter(inside, seed, truth, bugs=0.02 * (seed % 2)),
        "lying": LyingDrafter(seed, 384, truth),
        "eagle3": head,
        "block": InformedDrafter(drafted, seed, truth, bugs=0.02 * (seed % 2)),
    }


def check_unchanged(
    target: CpuTarget,
    requests: Sequence[EngineRequest],
    expected: Mapping[tuple[str, int], object],
    drafters: Mapping[str, Drafter],
    rng: random.Random,
    late: int = 20,
) -> Collected:
    """Under a schedule drawn by `rng`, with requests that come up to `late` steps late, each comes out as expected."""
    schedule = EngineSettings(
        max_sequences=rng.choice((1, 2, 8)), max_rows=rng.choice((8, 17, 64, 256)), prefill_rows=rng.choice((1, 7, 64))
    )
    arrivals = [rng.randrange(late) for _ in requests]
    collected = run(target, requests, drafters=drafters, settings=schedule, arrivals=arrivals)
    for request in requests:
        assert signature(collected, request) == expected[request.key], (request, schedule)
    return collected


def check_identity(target: CpuTarget, reference: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    requests = requests_of(rng, rng.randrange(1, 6))
    expected = {request.key: alone(reference, request) for request in requests}
    truth = {key: tokens for key, (tokens, *_) in expected.items()}
    check_unchanged(target, requests, expected, drafters_of(target, seed, truth), rng)


@given(seed=st.integers(0, 2**32))
@battery
def test_no_schedule_changes_a_token(target: CpuTarget, seed: int) -> None:
    check_identity(target, target, seed)


@given(seed=st.integers(0, 2**32))
@battery
def test_preemption_changes_no_token(cramped_target: CpuTarget, target: CpuTarget, seed: int) -> None:
    check_identity(cramped_target, target, seed)


@given(seed=st.integers(0, 2**32))
@short_battery  # of another arithmetic; the schedules are those above
def test_no_schedule_changes_a_token_of_int8(whole_number_target: CpuTarget, seed: int) -> None:
    check_identity(whole_number_target, whole_number_target, seed)


@given(seed=st.integers(0, 2**32), temperature=st.sampled_from((0.0, 0.7, 1.0, 1.2)))
@example(seed=0, temperature=0.0)
@battery
def test_a_lying_drafter_cannot_change_the_output(target: CpuTarget, seed: int, temperature: float) -> None:
    rng = random.Random(seed)
    sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=40, ignore_eos=True)
    prompt = tuple(rng.randrange(384) for _ in range(rng.randrange(1, 80)))
    honest = EngineRequest("r", prompt, sampling, method="off")
    expected = alone(target, honest)
    liar = LyingDrafter(seed, 384, {honest.key: expected[0]}, bugs=rng.choice((0.0, 0.02)))
    lied_to = EngineRequest("r", prompt, sampling, method="lying")
    collected = run(target, [lied_to], drafters={"lying": liar})
    assert signature(collected, lied_to) == expected


def test_a_drafter_that_knows_the_answer_saves_passes_and_changes_nothing(target: CpuTarget) -> None:
    sampling = SamplingParams(max_tokens=100, ignore_eos=True)
    request = EngineRequest("r", (5, 9, 300), sampling, method="lying")
    expected = alone(target, request)
    collected = run(target, [request], drafters={"lying": LyingDrafter(1, 384, {request.key: expected[0]}, bugs=0.0)})
    metrics = collected.outcomes[request.key].metrics
    assert signature(collected, request) == expected
    assert metrics.target_passes < 60
    assert metrics.num_accepted_tokens == sum(metrics.num_accepted_tokens_per_pos) == 100 - metrics.target_passes


SHAPES = [
    (method, {width: rows})
    for method, width in (("eagle3", "tree_width"), ("mtp", "tree_width"), ("block", "block_width"))
    for rows in (1, 4)
]
HEADS = {"eagle3": eagle3, "block": block, "mtp": mtp}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("method", "shape"), SHAPES)
def test_a_head_that_knows_the_answer_saves_passes_and_changes_nothing(
    target: CpuTarget, temperature: float, method: str, shape: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=100, ignore_eos=True)
    depth = None if method == "block" else 4
    request = EngineRequest("r", tuple(range(70)), sampling, method=method, parameters=shape, k=depth)
    expected = alone(target, request)
    informed = InformedDrafter(HEADS[method](target), 1, {request.key: expected[0]}, right=0.9)
    collected = run(target, [request], drafters={method: informed})
    metrics = collected.outcomes[request.key].metrics
    assert signature(collected, request) == expected
    assert metrics.target_passes < 60
    assert 2 <= len(metrics.num_accepted_tokens_per_pos) <= (depth or 5)
    assert not caplog.records


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [None, 3e38, -1e30])  # sums of the latter two are infinite or no numbers
@pytest.mark.parametrize("method", HEADS)
def test_heads_of_noise_and_heads_gone_mad_change_nothing(
    target: CpuTarget, temperature: float, poison: float | None, method: str
) -> None:
    trees, drafter = method != "block", _poisoned(target, method, poison)
    sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True)
    requests = [
        EngineRequest(
            f"r{n}", tuple(range(n, n + 30 * n + 1)), sampling, method=method, k=1 + n,
            parameters={"tree_width": 1 + 3 * (n % 2)} if trees else {},
        )
        for n in range(4)
    ]  # fmt: skip
    collected = run(target, requests, drafters={method: drafter})
    assert [signature(collected, request) for request in requests] == [alone(target, request) for request in requests]
    if poison is None:
        assert any(collected.outcomes[request.key].metrics.num_draft_tokens for request in requests)


def _poisoned(target: CpuTarget, method: str, poison: float | None) -> Drafter:
    """A drafter by a random head, all of whose weights are `poison` if that is given."""
    if method == "mtp":
        drawn = random_mtp(target.config)
        filled = {
            name: StoredTensor.of_values(name, np.full(tensor.shape, poison or 0.0, np.float32))
            for name, tensor in drawn.tensors.items()
        }
        return MtpDrafter(drawn if poison is None else replace(drawn, tensors=filled), target)
    trees, kind = method == "eagle3", Eagle3Drafter if method == "eagle3" else BlockDrafter
    drafter = eagle3(target, fc_norm=True, norm_output=True) if trees else block(target)
    if poison is None:
        return drafter
    for tensor in drafter.head.tensors.values():
        tensor.fill(poison)
    return kind(drafter.head, target)


def test_a_head_drafts_on_past_its_trained_length(target: CpuTarget, caplog: pytest.LogCaptureFixture) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    request = EngineRequest("r", tuple(range(70)), sampling, method="eagle3", k=2)
    to_the_end = EngineRequest("end", tuple(range(384)) + tuple(range(68)), sampling, method="eagle3", k=16)
    expected = [alone(target, each) for each in (request, to_the_end)]
    truth = {request.key: expected[0][0], to_the_end.key: expected[1][0]}
    drafter = InformedDrafter(eagle3(target, trained_length=16), 1, truth, right=0.9)
    collected = run(target, [request, to_the_end], drafters={"eagle3": drafter})
    assert [signature(collected, each) for each in (request, to_the_end)] == expected
    assert all(outcome.metrics.target_passes < 45 for outcome in collected.outcomes.values())
    assert not caplog.records


def test_a_cancelled_neighbour_changes_nothing_and_keeps_what_it_had(target: CpuTarget) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=4)
    requests = [EngineRequest(name, (1, 2, 3, 4), sampling, method="lookahead") for name in ("stays", "goes")]
    drafters = {"lookahead": LookaheadDrafter()}
    collected = run(target, requests, drafters=drafters, cancellations={9: "goes"})
    expected = alone(target, requests[0])
    gone = collected.outcomes[requests[1].key]
    assert signature(collected, requests[0]) == expected
    assert gone.finish_reason == "cancelled"
    assert 0 < len(gone.token_ids) < 60
    assert gone.token_ids == expected[0][: len(gone.token_ids)]


def test_the_number_of_threads_changes_no_bit(model: Path) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11, max_tokens=80, ignore_eos=True)
    request = EngineRequest("r", tuple(range(70)), sampling, method="lookahead")
    signatures = set()
    for threads in (1, 2, 3):
        target = load_target(model, cache_tokens=40 * 64, threads=threads)
        drafters = {"lookahead": LookaheadDrafter()}
        signatures.add(signature(run(target, [request], drafters=drafters), request))
    assert len(signatures) == 1


def test_sequences_that_preempt_each_other_come_out_the_same(cramped_target: CpuTarget, target: CpuTarget) -> None:
    sampling = SamplingParams(temperature=1.0, seed=2, max_tokens=90, ignore_eos=True)
    requests = [EngineRequest(name, tuple(range(n, n + 60)), sampling) for n, name in enumerate("abcd")]
    collected = run(cramped_target, requests)
    assert collected.preemptions > 0
    assert [signature(collected, request) for request in requests] == [alone(target, request) for request in requests]


def test_choices_of_one_request_differ_and_each_is_reproducible(target: CpuTarget) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True)
    requests = [EngineRequest("r", (7, 8, 9), sampling, choice) for choice in range(4)]
    collected = run(target, requests)
    outputs = [collected.outcomes[request.key].token_ids for request in requests]
    assert len(set(outputs)) == 4
    assert [alone(target, request)[0] for request in requests] == outputs


@pytest.mark.parametrize("method", ["lookahead", "rest", *HEADS])
def test_copies_that_run_far_change_no_bit(target: CpuTarget, method: str) -> None:
    drafters: dict[str, Drafter] = {
        "lookahead": LookaheadDrafter(),
        "rest": RestDrafter({}),
        **{name: head(target, copies=True) for name, head in HEADS.items()},
    }
    sampling = SamplingParams(max_tokens=200, ignore_eos=True, logit_bias=((9, 100.0),))
    request = EngineRequest("r", (9,) * 40, sampling, method=method)
    collected = run(target, [request], drafters=drafters)
    assert signature(collected, request) == alone(target, request)
    assert len(collected.outcomes[request.key].metrics.num_accepted_tokens_per_pos) == 31


ADAPTERS = {"small": {"rank": 3, "modules": ("q_proj", "up_proj")}, "wide": {"rank": 16}}


@pytest.fixture(scope="module")
def directories(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_tiny_adapters(tmp_path_factory.mktemp("adapters"), model, ADAPTERS)


@pytest.fixture(scope="module")
def mixed(model: Path, directories: dict[str, Path]) -> CpuTarget:
    return load_target(model, cache_tokens=40 * 64, adapters=directories)


@pytest.fixture(scope="module")
def cramped(model: Path, directories: dict[str, Path]) -> CpuTarget:
    """The same with a cache of four blocks: sequences preempt each other."""
    return load_target(model, cache_tokens=4 * 64, adapters=directories)


@pytest.fixture(scope="module")
def lone(model: Path, directories: dict[str, Path]) -> dict[str | None, CpuTarget]:
    """By the identifier that a request names: a target with that adapter only; for None, a target without adapters."""
    each = [load_target(model, cache_tokens=20 * 64, adapters={n: path}) for n, path in directories.items()]
    return {t.adapters[0].cid: t for t in each} | {None: load_target(model, cache_tokens=20 * 64)}


def check_adapted_identity(target: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    rng = random.Random(seed)
    adapters = [None, *(adapter.cid for adapter in target.adapters)]
    requests = [replace(each, adapter=rng.choice(adapters)) for each in requests_of(rng, rng.randrange(2, 6))]
    expected = {request.key: alone(lone[request.adapter], request) for request in requests}
    truth = {key: tokens for key, (tokens, *_) in expected.items()}
    check_unchanged(target, requests, expected, drafters_of(target, seed, truth), rng)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_neighbour_s_adapter_changes_a_token(mixed: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    check_adapted_identity(mixed, lone, seed)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_preemption_keeps_the_adapter(cramped: CpuTarget, lone: dict[str | None, CpuTarget], seed: int) -> None:
    check_adapted_identity(cramped, lone, seed)


def test_one_prompt_under_each_adapter_gives_texts_of_its_own(
    mixed: CpuTarget, lone: dict[str | None, CpuTarget]
) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    adapters = [None, *(adapter.cid for adapter in mixed.adapters)]
    requests = [EngineRequest(f"r{n}", (5, 9, 300), sampling, adapter=cid) for n, cid in enumerate(adapters)]
    collected = run(mixed, requests)
    outputs = [signature(collected, request) for request in requests]
    assert len({tokens for tokens, *_ in outputs}) == 3
    assert outputs == [alone(lone[request.adapter], request) for request in requests]


def test_a_prefix_is_shared_under_the_same_adapter_only(mixed: CpuTarget, lone: dict[str | None, CpuTarget]) -> None:
    sampling, prompt = SamplingParams(max_tokens=20, ignore_eos=True), tuple((3 * i * i) % 384 for i in range(140))
    adapters = [None, *(adapter.cid for adapter in mixed.adapters)]
    requests = [EngineRequest(f"r{n}", prompt, sampling, adapter=cid) for n, cid in enumerate([*adapters, *adapters])]
    collected = run(mixed, requests, arrivals=[60 * n for n in range(len(requests))])
    for number, request in enumerate(requests):
        assert signature(collected, request) == alone(lone[request.adapter], request)
        reused = collected.outcomes[request.key].metrics.cached_prompt_tokens
        assert reused == (0 if number < len(adapters) else 128)


def test_an_adapter_that_is_not_loaded_is_refused(mixed: CpuTarget) -> None:
    request = EngineRequest("r", (1,), SamplingParams(), adapter="cidv1:sha256:" + "0" * 64)
    with pytest.raises(InvalidRequest):
        run(mixed, [request])
    assert mixed.blocks.used == 0
