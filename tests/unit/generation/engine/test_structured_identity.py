"""The contract under grammars: every method gives the output of `off`, and the grammar allows it."""

import json
import random
import re
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.drafter import Drafter
from services.generation.engine.events import Outcome
from services.generation.engine.grammar_guide import GrammarGuide
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams, StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.turns import Gains
from services.generation.requests.prompt import Tools
from services.generation.target.cpu import CpuTarget
from services.generation.verification import Record, RecordDrafter
from tests.fakes.drafters import LyingDrafter, Panic
from tests.fakes.engine_runs import run
from tests.fakes.grammars import CONSTRAINTS, PERSON, grammar
from tests.fakes.heads import InformedDrafter, eagle3, mtp
from tests.fakes.marked import FAMILIES, marked_grammar, markup_of, opening_of, tokenizer_of
from tests.unit.generation.engine.test_identity import ONE_ROW, battery

METHODS = ("off", "lying", "lookahead", "rest", "eagle3", "mtp")


@pytest.fixture(scope="module")
def tokenizer(model) -> Tokenizer:  # type: ignore[no-untyped-def]
    return Tokenizer(model)


def request_of(rng: random.Random, number: int) -> EngineRequest:
    source = rng.choice(CONSTRAINTS)
    plain = rng.random() < 0.5
    sampling = SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.2)),
        top_p=1.0 if plain else 0.9,
        top_k=0 if plain else rng.choice((0, 40)),
        seed=rng.randrange(2**53),
        max_tokens=rng.randrange(1, 60),
        stop_token_ids=(rng.randrange(384),) if rng.random() < 0.3 else (),
        logit_bias=() if plain else ((rng.randrange(384), 4.0),),
        repetition_penalty=1.0 if plain else 1.2,
        structured_outputs=source,
    )
    prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 5, 40, 64))))
    return EngineRequest(
        f"r{number}", prompt, sampling, rng.randrange(3), method=rng.choice(METHODS), grammar=grammar(source)
    )


def outcome_of(target: CpuTarget, request: EngineRequest, **run_with) -> Outcome:  # type: ignore[no-untyped-def]
    return run(target, [request], **run_with).outcomes[request.key]


def alone(target: CpuTarget, request: EngineRequest) -> Outcome:
    return outcome_of(target, replace(request, method="off", k=None), settings=ONE_ROW)


def signature(outcome: Outcome) -> tuple[object, ...]:
    return outcome.token_ids, outcome.stream_digest, outcome.finish_reason, outcome.stop_reason


@given(seed=st.integers(0, 2**32))
@battery
def test_no_method_and_no_schedule_changes_a_token_under_a_grammar(
    target: CpuTarget, cramped_target: CpuTarget, tokenizer: Tokenizer, seed: int
) -> None:
    rng = random.Random(seed)
    requests = [request_of(rng, number) for number in range(rng.randrange(1, 5))]
    expected = {request.key: alone(target, request) for request in requests}
    truth = {key: outcome.token_ids for key, outcome in expected.items()}
    drafters: dict[str, Drafter] = {
        "lying": LyingDrafter(seed, 384, truth),
        "lookahead": LookaheadDrafter(),
        "rest": RestDrafter({}),
        "eagle3": InformedDrafter(eagle3(target, seed=seed), seed, truth, bugs=0.02 * (seed % 2)),
        "mtp": InformedDrafter(mtp(target, seed=seed), seed, truth, bugs=0.02 * (seed % 2)),
    }
    schedule = EngineSettings(
        max_sequences=rng.choice((1, 8)), max_rows=rng.choice((8, 64, 256)), prefill_rows=rng.choice((1, 7, 64))
    )
    busy = (
        cramped_target if not {"eagle3", "mtp"} & {each.method for each in requests} and rng.random() < 0.3 else target
    )
    arrivals = [rng.randrange(10) for _ in requests]
    collected = run(busy, requests, drafters=drafters, settings=schedule, arrivals=arrivals)
    for request in requests:
        assert signature(collected.outcomes[request.key]) == signature(expected[request.key]), (request, schedule)
        if expected[request.key].finish_reason == "stop":
            check_allowed(request, tokenizer.decode(expected[request.key].token_ids[:-1]))


def check_allowed(request: EngineRequest, text: str) -> None:
    """Check a finished output against its constraint with independent readers."""
    source = request.sampling.structured_outputs
    assert source is not None
    if source.kind == "json":
        jsonschema.validate(json.loads(text), PERSON, format_checker=jsonschema.FormatChecker())
    elif source.kind == "json_object":
        assert isinstance(json.loads(text), dict)
    elif source.kind == "regex":
        assert re.fullmatch(source.text, text)
    elif source.kind == "choice":
        assert text in json.loads(source.text)
    else:
        assert re.fullmatch(r"[0-9]{1,3}(\+[0-9]{1,3})*|\(*(guess|decide and tell)\)*", text)


CITY = {"type": "object", "properties": {"city": {"enum": ["Bern", "<think>", "a</tool_call>b"]}}, "required": ["city"]}
GET = pb.Tool(name="get", parameters=json.dumps(CITY | {"additionalProperties": False}), strict=True)
TOOLS = (Tools((GET,), required=True, held=True), Tools((GET,), held=True))


@pytest.mark.parametrize("name", ["qwen3", "mistral", "deepseek"])
@pytest.mark.parametrize("tools", TOOLS, ids=["required", "strict beside auto"])
def test_calls_in_markup_run_to_their_end_and_are_those_of_off(target: CpuTarget, name: str, tools: Tools) -> None:
    family = FAMILIES[name]
    markup, opening = markup_of(family), opening_of(family)
    source = StructuredOutputs("grammar", tools.grammar(family.calls, markup.ids, markup.hidden))
    sampling = SamplingParams(
        temperature=1.0, seed=7, max_tokens=400, structured_outputs=source, stop_token_ids=(family.end,),
        ignore_eos=True, logit_bias=((opening[0], 100.0),),
    )  # fmt: skip
    compiled = marked_grammar(family, source)
    requests = [EngineRequest(each, (5, 9, 300), sampling, method=each, grammar=compiled) for each in METHODS]
    expected = alone(target, replace(requests[0], request_id="-"))
    truth = {request.key: expected.token_ids for request in requests}
    drafters: dict[str, Drafter] = {
        "lying": LyingDrafter(1, 384, truth),
        "lookahead": LookaheadDrafter(),
        "rest": RestDrafter({}),
        "eagle3": InformedDrafter(eagle3(target, seed=1), 1, truth),
        "mtp": InformedDrafter(mtp(target, seed=1), 1, truth),
    }
    outcomes = run(target, requests, drafters=drafters).outcomes
    assert expected.finish_reason == "stop"
    assert expected.token_ids[: len(opening)] == opening
    assert tokenizer_of(family).decode(expected.token_ids[:-1], skip_special_tokens=False).endswith(family.calls.close)
    for request in requests:
        assert outcomes[request.key].token_ids == alone(target, request).token_ids


@pytest.mark.parametrize("source", CONSTRAINTS, ids=lambda source: source.kind)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pass_over_the_record_gives_what_decoding_gave(
    target: CpuTarget, source: StructuredOutputs, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=80, structured_outputs=source)
    request = EngineRequest("r", (5, 9, 300), sampling, grammar=grammar(source), method="record")
    expected = alone(target, request)
    drafter = RecordDrafter(Record(request, expected.token_ids).output)
    again = outcome_of(target, request, drafters={"record": drafter})
    assert signature(again) == signature(expected)
    assert not drafter.left
    assert again.metrics.target_passes <= 3


def test_a_forced_output_takes_few_passes_under_every_method(target: CpuTarget) -> None:
    source = StructuredOutputs(
        "choice", json.dumps(["every receipt is signed and every drafter guesses, the target decides"])
    )
    sampling = SamplingParams(max_tokens=80, structured_outputs=source)
    for method in ("off", "eagle3", "lookahead"):
        request = EngineRequest("r", (5, 9, 300), sampling, grammar=grammar(source), method=method)
        drafters = {"eagle3": eagle3(target), "lookahead": LookaheadDrafter()}
        outcome = outcome_of(target, request, drafters=drafters)
        assert signature(outcome) == signature(alone(target, request))
        assert outcome.metrics.target_passes <= (3 if method != "off" else len(outcome.token_ids))
        assert (outcome.metrics.num_draft_tokens > 0) == (method != "off")


def test_what_a_grammar_forces_while_no_method_has_its_turn_is_counted_as_a_draft(target: CpuTarget) -> None:
    source = StructuredOutputs("choice", json.dumps(["every receipt is signed"]))
    sampling = SamplingParams(max_tokens=80, structured_outputs=source)
    request = EngineRequest("r", (5, 9, 300), sampling, grammar=grammar(source), method="lookahead")
    gains, drafters = Gains(), {"lookahead": LookaheadDrafter()}
    for _ in range(8):
        gains.begin(request, ("lookahead",)).passed(-1.0)
    assert gains.begin(request, ("lookahead",)).method is None
    metrics = outcome_of(target, request, drafters=drafters, gains=gains).metrics
    assert metrics.num_drafts == dict(metrics.passes_by_method)["lookahead"] > 0


@pytest.mark.parametrize("part", ["__init__", "follow", "_forced", "fit"])
def test_a_grammar_that_fails_while_drafts_are_made_changes_no_request_s_tokens(
    target: CpuTarget, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, calls = CONSTRAINTS[2], []
    sampling = SamplingParams(max_tokens=30, structured_outputs=source)
    fails, other = (
        EngineRequest(name, (5, 9, 300), sampling, grammar=grammar(source), method="lying") for name in ("a", "b")
    )
    expected = {each.key: alone(target, each) for each in (fails, other)}
    honest = getattr(GrammarGuide, part)

    def failing(self: GrammarGuide, *arguments: object) -> object:
        calls.append(part)
        if len(calls) == 3:
            raise Panic("in the grammar")
        return honest(self, *arguments)

    monkeypatch.setattr(GrammarGuide, part, failing)
    third = EngineRequest("c", (5, 9, 300), sampling, grammar=grammar(source), method="lying")
    outcomes = run(target, [fails, other, third], drafters={"lying": LyingDrafter(1, 384, bugs=0.0)}).outcomes
    assert len(calls) >= 3
    for request in (fails, other):
        assert signature(outcomes[request.key]) == signature(expected[request.key])
    assert outcomes[third.key].token_ids == outcomes[fails.key].token_ids


def test_a_grammar_that_fails_while_a_token_is_chosen_ends_its_own_sequence(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, other = (
        EngineRequest(
            name, (5, 9, 300), SamplingParams(max_tokens=30, structured_outputs=source), grammar=grammar(source)
        )
        for name, source in (("a", CONSTRAINTS[2]), ("b", CONSTRAINTS[3]))
    )
    honest, expected = GrammarMask.accept, alone(target, other)

    def failing(self: GrammarMask, token: int) -> None:
        if self._grammar == fails.grammar:
            raise Panic("in the grammar")
        honest(self, token)

    monkeypatch.setattr(GrammarMask, "accept", failing)
    outcomes = run(target, [fails, other]).outcomes
    assert outcomes[fails.key].finish_reason == "error"
    assert signature(outcomes[other.key]) == signature(expected)


def test_a_grammar_that_reaches_a_limit_ends_its_own_sequence_with_an_error(target: CpuTarget) -> None:
    bomb = StructuredOutputs("grammar", 'start: ("a"~1..1000000)~1..1000000')
    never_ends = ((grammar(bomb).eos, -100.0),)
    requests = [
        EngineRequest(
            source.kind,
            (5, 9, 300),
            SamplingParams(max_tokens=60, structured_outputs=source, logit_bias=never_ends),
            grammar=grammar(source),
        )
        for source in (bomb, CONSTRAINTS[2])
    ]
    outcomes = run(target, requests).outcomes
    assert outcomes[requests[0].key].finish_reason == "error"
    assert "grammar" in (outcomes[requests[0].key].error or "")
    assert signature(outcomes[requests[1].key]) == signature(alone(target, requests[1]))


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("min_tokens", {"min_tokens": 2}),
        ("ignore_eos", {"ignore_eos": True}),
        ("structured_outputs", {"structured_outputs": CONSTRAINTS[1]}),
    ],
)
def test_parameters_that_contradict_a_grammar_are_refused(field: str, members: dict[str, object]) -> None:
    source = CONSTRAINTS[0]
    sampling = SamplingParams(**{"structured_outputs": source, **members})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as caught:
        EngineRequest("r", (1,), sampling, grammar=grammar(source)).check(384, 512)
    assert caught.value.field == field
