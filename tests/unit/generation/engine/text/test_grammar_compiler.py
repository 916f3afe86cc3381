"""Grammars: refusals name field and place, bombs are bounded, masks allow what the constraint allows."""

import asyncio
import gc
import json
import math
import random
import resource
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.request import (
    MAX_TEXT,
    EngineBusy,
    EngineError,
    EngineFull,
    Grammar,
    GrammarLimit,
    InvalidRequest,
    Kind,
    StructuredOutputs,
    UnusableLogits,
)
from services.generation.engine.sampling.processors import GrammarMask, forbid
from services.generation.engine.text import grammar_compiler as module
from services.generation.engine.text import grammar_turns
from services.generation.engine.text.grammar import grammar_text
from services.generation.engine.text.grammar_compiler import Cost, GrammarCompiler
from services.generation.engine.text.grammar_turns import MOST_WAITING, GrammarTurns
from services.runtime.errors import ResourceExhausted
from tests.examples import examples
from tests.fakes.grammars import CONSTRAINTS, SLOW, VOCAB, compiler, decoded, encoded, grammar, ids
from tests.fakes.grammars import END_ID as END

JOINED = json.dumps({"allOf": [{"pattern": f"a{n}z"} for n in range(17)]})


def refusal(kind: Kind, text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(StructuredOutputs(kind, text))
    assert caught.value.field == f"structured_outputs.{kind}"
    return caught.value.message


def rule_chain(count: int) -> str:
    rules = (f'r{n}: r{n + 1} | "a"' for n in range(count))
    return "\n".join(["start: r0", *rules, f'r{count}: "b"'])


def multiple(*steps: float) -> str:
    """A schema of numbers that are multiples of all of these."""
    return json.dumps({"type": "number", "allOf": [{"multipleOf": step} for step in steps]})


def references(count: int, **each: Any) -> str:
    """A schema that refers to the next one, and so on."""
    chain = {f"d{n}": each | {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "null"}}})


def schema_of(deep: Any) -> str:
    """`deep` two levels down, beside members without fault."""
    members = {"fine": {"type": "string"}, "a/b": {"type": "array", "items": deep}}
    return json.dumps({"type": "object", "properties": members, "required": ["fine"]})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", schema_of({"type": "string", "format": "nonsense"})),
        ("json", schema_of({"type": "strin"})),
        ("json", schema_of({"type": "string", "pattern": "(?=x)y"})),
        ("json", schema_of({"unevaluatedProperties": False})),
        ("json", schema_of({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
        ("json", '{"type": "string", "minLength": 5, "maxLength": 2}'),
        ("json", schema_of({"$ref": "https://example.com/other.json"})),
        ("json", json.dumps({"$ref": "#/$defs/id", "$defs": {"id": {"type": "string", "format": "ean"}}})),
        ("json", '{"x-guidance": []}'),
        ("json", '{"x-guidance": {"lenient": true}}'),
        ("json", "{"),
        ("json", "3"),
        ("json", r'{"const": "\ud800"}'),
        ("json", '{"const": NaN}'),
        ("json", '{"maximum": -1e999}'),
        ("json", '{"minimum": ' + "9" * 400 + "}"),
        ("json", "[" * 5000 + "]" * 5000),
        ("json", '{"not": ' * 101 + "{}" + "}" * 101),
        ("json", "false"),
        ("json", '{"$ref": "#"}'),
        ("json", '"' + "x" * MAX_TEXT + '"'),
        ("json", JOINED),
        ("grammar", "start: X\nX: " + " & ".join(f"/.*a{n}.*/" for n in range(18))),
        ("grammar", "start: %json " + JOINED),
        ("grammar", 'start: "[" x "]"\nx: %json  ' + JOINED + ' | %json {"type": "null"}'),
        ("grammar", "start: %json " + "[" * 9000),
        ("regex", "(a"),
        ("regex", "(" * 5000 + "a" + ")" * 5000),
        ("choice", "[]"),
        ("choice", '["a", ""]'),
        ("choice", '"a"'),
        ("grammar", "start: missing"),
        ("grammar", "nothing at all"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        ("json", json.dumps({"enum": [f"{n * n:x} and {n:o}" for n in range(9000)]})),
        ("regex", "a\ud800"),
    ],
)
def test_what_does_not_compile_is_refused_in_a_few_words(kind: Kind, text: str) -> None:
    assert len(refusal(kind, text)) < 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("grammar", rule_chain(4000)),
        ("grammar", rule_chain(4000).replace("r", "T").replace("staTt", "start")),
        ("grammar", rule_chain(4000).replace(": ", " ::= ").replace("start", "root")),
        ("json", references(4000)),
        ("json", references(3900, type="strin")),  # the search for its fault would compile the chain
    ],
)
def test_a_chain_that_overflows_the_librarys_stack_costs_one_request(kind: Kind, text: str) -> None:
    refusal(kind, text)
    assert compiler().compile(StructuredOutputs("regex", f"after [0-9]{{{len(text)}}}"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"type": "integer", "multipleOf": 9999999}'),
        ("json", '{"type": "integer", "multipleOf": 1000000}'),
        ("json", '{"type": "number", "multipleOf": 99.99999}'),
        ("json", multiple(97, 101, 103)),
        ("json", multiple(0.001, 997)),
        ("json", '{"multipleOf": 997, "$ref": "#/$defs/a", "$defs": {"a": {"multipleOf": 991}}}'),
        ("grammar", 'start: %json {"multipleOf": 9999999}'),
    ],
)
def test_multiples_of_too_many_remainders_are_refused_before_the_library_sees_them(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidRequest, match="remainders"):
        grammar_text(StructuredOutputs(kind, text))


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\u00e9"', "é"),
        (r'root ::= "\xe9\x41" [\u00e0-\u00ff] "\U0001F600"', "éAü😀"),
        (r'root ::= "\x22\\x41\n" [^\x5d]', '"\\x41\n['),
        ('?start: word\nword: "a" | "b"', "a"),
        ('start: "x ::= y"', "x ::= y"),
        ('start: "😀é\u2028"', "😀é\u2028"),
    ],
)
def test_lark_and_gbnf_are_told_apart_and_escapes_are_characters(grammar: str, text: str) -> None:
    matcher = compiler().compile(StructuredOutputs("grammar", grammar)).matcher()
    assert matcher.consume_tokens(encoded(text))
    assert matcher.is_accepting()


def test_a_half_of_a_surrogate_pair_in_gbnf_is_refused() -> None:
    assert "surrogate" in refusal("grammar", r'root ::= "\ud83d"')


@pytest.mark.parametrize("text", ["x{100000}", "(ab){50000}", "[ab]{100000}"])
def test_a_long_repetition_is_refused_or_runs_to_its_end(text: str) -> None:
    """Not an error behind the first mask."""
    source = StructuredOutputs("regex", text)
    try:
        laid = GrammarMask(compiler().compile(source), frozenset((END,)))
    except InvalidRequest:
        return
    for _ in range(100):
        laid.accept(ids(laid)[0])


def test_a_grammar_whose_trial_does_not_end_is_refused_and_the_next_one_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = GrammarCompiler(compiler()._source, VOCAB, (1,))
    fresh.compile(StructuredOutputs("regex", "a"))
    process = fresh._trial._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(module, "_PATIENCE", 0.03)
    with pytest.raises(EngineBusy):
        fresh.compile(StructuredOutputs("regex", "b"))
    monkeypatch.undo()
    assert fresh.compile(StructuredOutputs("regex", "c"))
    second = fresh._trial._process
    assert second is not None
    second.kill()  # between two grammars
    second.wait()
    assert fresh.compile(StructuredOutputs("regex", "d"))
    ended = [weakref.ref(process), weakref.ref(second)]
    del process, second
    gc.collect()
    assert [each() for each in ended] == [None, None]  # nothing waits for their ids when the server ends


@pytest.mark.slow
def test_a_process_that_computes_or_takes_memory_without_end_is_ended_by_the_system() -> None:
    """The limits that the process sets for itself, if nothing else stops it."""
    for endless, ended in (("\nwhile True: pass", -signal.SIGXCPU), ("bytearray(2 << 30)", 1)):
        code = f"from services.generation.engine.text import grammar_compiler as it; it._limit(0); {endless}"
        assert subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL).returncode == ended


def test_what_was_compiled_is_kept_and_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    fresh = GrammarCompiler(compiler()._source, VOCAB, (1,))
    first, second, third = (StructuredOutputs("regex", text) for text in ("a+", "b+", "c+"))
    for source in (first, second, first, third):
        fresh.compile(source)
    cost = Cost()
    assert fresh.compile(first, cost) == fresh.compile(first)
    assert cost.seconds == 0
    assert second not in fresh._kept


NESTED = "(((a{1,99}){1,99}){1,99}){1,99}"
"""A regex whose output `a…` reaches a limit of the library after a few tokens."""


@pytest.mark.parametrize("text", [NESTED, "((a?){1,99}){1,99}", "(((a|b){0,20}){0,20}){0,20}"])
def test_an_output_that_reaches_a_limit_has_an_error_of_its_own_and_is_no_others_limit(text: str) -> None:
    source, (spelled,) = StructuredOutputs("regex", f"{text}|c[cd]*"), encoded("c")
    limited, other = mask(source), mask(source)

    def go_on() -> None:
        for _ in range(1000):
            limited.accept(next(token for token in ids(limited) if token not in (spelled, END)))

    with pytest.raises(GrammarLimit):
        go_on()
    for beside in (other, mask(source)):
        for _ in range(20):
            assert spelled in ids(beside)
            beside.accept(spelled)


async def test_each_sequence_gets_a_matcher_that_was_compiled_in_a_turn_of_its_tenant() -> None:
    budget = Ledger()
    found = await compiler().compiled(StructuredOutputs("regex", "[ab]{21}"), "a", budget, sequences=3)
    trial, *made = budget.charged
    assert len(found.compiled) == len(made) == 3
    assert min(trial, *made) > 0
    assert len({id(found.matcher()) for _ in range(4)}) == 4


def test_a_model_without_an_end_or_with_a_tokenizer_that_cannot_be_read_takes_no_grammar() -> None:
    source = StructuredOutputs("regex", "a")
    with pytest.raises(InvalidRequest):
        GrammarCompiler(compiler()._source, VOCAB, ()).compile(source)
    with pytest.raises(InvalidRequest):
        GrammarCompiler(lambda: "{}", VOCAB, (1,)).compile(source)


async def test_who_waits_for_a_slow_grammar_takes_no_thread_from_others() -> None:
    class Slow(GrammarCompiler):
        def _compile(self, source: StructuredOutputs, cost: Cost) -> Grammar:
            slow.wait(20)
            raise InvalidRequest("structured_outputs", "was slow")

    slow = threading.Event()
    grammars = Slow(str, 8, (0,))
    asked = [grammars.compiled(StructuredOutputs("regex", f"a{n}"), f"tenant {n}") for n in range(64)]
    waiting = [asyncio.ensure_future(each) for each in asked]
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10) == "free"
        assert not any(each.done() for each in waiting)
    finally:
        slow.set()
        await asyncio.gather(*waiting, return_exceptions=True)


class Scripted(GrammarCompiler):
    """Compiles nothing: each grammar costs the seconds that its text is, and is refused or, of kind `grammar`, too
    slow.
    """

    def __init__(self) -> None:
        self.now, self.tried = 100.0, list[str]()
        super().__init__(str, 8, (0,), clock=lambda: self.now)

    def _compile(self, source: StructuredOutputs, cost: Cost) -> Grammar:
        self.tried.append(source.text)
        cost.seconds += float(source.text)
        raise (EngineBusy if source.kind == "grammar" else InvalidRequest)("structured_outputs", "is slow")


async def test_turns_go_to_the_tenant_whose_grammars_have_taken_the_fewest_seconds() -> None:
    grammars = Scripted()
    flood = [grammars.compiled(StructuredOutputs("regex", f"3.{n:02}"), "flood") for n in range(MOST_WAITING + 1)]
    asked = [asyncio.ensure_future(each) for each in flood]
    await asyncio.sleep(0)
    asked += [asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", f"0.{n}"), "a")) for n in range(1, 4)]
    asked.append(asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", "0.5"), "b")))
    with pytest.raises(EngineFull):
        await grammars.compiled(StructuredOutputs("regex", "3.99"), "flood")
    assert all(isinstance(each, InvalidRequest) for each in await asyncio.gather(*asked, return_exceptions=True))
    assert grammars.tried[:5] == ["3.00", "0.1", "0.5", "0.2", "0.3"]
    assert grammars.tried[5:] == [f"3.{n:02}" for n in range(1, MOST_WAITING + 1)]


async def test_a_tenant_whose_counter_is_dropped_before_it_resumes_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_turns, "_MOST_COUNTERS", 1)
    turns = GrammarTurns()
    await turns.take("a")
    given = asyncio.ensure_future(turns.take("b"))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(turns.take("c"))  # runs before b resumes, and drops the counters of other tenants
    turns.end("a", 1.0)
    await given
    turns.end("b", 1.0)
    await late


async def test_a_caller_that_leaves_gives_its_turn_away() -> None:
    grammars = Scripted()
    texts = ("1", "2", "3")
    first, second, third = (asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", t), t)) for t in texts)
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert grammars.tried == ["1", "3"]
    with pytest.raises(InvalidRequest):
        await grammars.compiled(StructuredOutputs("regex", "4"))


async def test_a_turn_that_ends_as_the_next_caller_leaves_goes_to_the_one_after() -> None:
    turns = GrammarTurns()
    await turns.take("a")
    leaving, later = (asyncio.ensure_future(turns.take(tenant)) for tenant in "bc")
    await asyncio.sleep(0)
    leaving.cancel()
    turns.end("a", 1.0)
    await asyncio.wait_for(later, 20)
    assert leaving.cancelled()
    turns.end("c", 1.0)
    assert not turns._is_taken


class Ledger:
    """A budget that notes what it is charged, and refuses a tenant that has spent `limit`."""

    def __init__(self, limit: float = math.inf) -> None:
        self.limit, self.charged = limit, list[float]()

    def check_grammars(self, tenant: str) -> None:
        if sum(self.charged) > self.limit:
            raise ResourceExhausted("spent", retry_after=1.0)

    def charge_grammar(self, tenant: str, seconds: float) -> None:
        self.charged.append(seconds)


@pytest.mark.parametrize(("kind", "error"), [("regex", InvalidRequest), ("grammar", EngineBusy)])
async def test_a_refused_or_slow_grammar_is_charged_once(kind: Kind, error: type[EngineError]) -> None:
    grammars, budget = Scripted(), Ledger()
    for _ in range(2):
        with pytest.raises(error):
            await grammars.compiled(StructuredOutputs(kind, "2.5"), "a", budget)
    assert budget.charged == [2.5]


async def test_a_tenant_without_budget_waits_for_no_turn_and_compiles_nothing() -> None:
    grammars, budget = Scripted(), Ledger(limit=1)
    sources = [StructuredOutputs("regex", text) for text in ("2", "3", "4")]
    asked = await asyncio.gather(*(grammars.compiled(each, "a", budget) for each in sources), return_exceptions=True)
    assert [type(each) for each in asked] == [InvalidRequest, ResourceExhausted, ResourceExhausted]
    assert grammars.tried == ["2"]


async def test_a_caller_that_leaves_pays_for_the_grammar_that_it_began_and_keeps_the_turn_until_it_is_done() -> None:
    class Held(Scripted):
        def _compile(self, source: StructuredOutputs, cost: Cost) -> Grammar:
            begun.set()
            go_on.wait(20)
            return super()._compile(source, cost)

    begun, go_on = threading.Event(), threading.Event()
    grammars, budget = Held(), Ledger()
    leaving = asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", "2"), "a", budget))
    try:
        await asyncio.to_thread(begun.wait, 20)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        later = asyncio.ensure_future(grammars.compiled(StructuredOutputs("regex", "1"), "b", budget))
        await asyncio.sleep(0)
        assert grammars._trials._turns._is_taken
        assert budget.charged == []
    finally:
        go_on.set()
    with pytest.raises(InvalidRequest):
        await later
    assert budget.charged == [2.0, 1.0]


async def test_the_cost_of_a_grammar_is_the_cpu_time_of_its_trial_however_it_ends() -> None:
    fresh, budget = GrammarCompiler(compiler()._source, VOCAB, (1,), seconds=1), Ledger()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    await fresh.compiled(StructuredOutputs("regex", "[ab]{20}"), "a", budget)
    with pytest.raises(InvalidRequest):
        await fresh.compiled(StructuredOutputs("regex", "("), "a", budget)
    with pytest.raises(EngineBusy):
        await fresh.compiled(StructuredOutputs("json", SLOW), "a", budget)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the process of all three, which has ended
    process = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    compiled, refused, ended = budget.charged
    assert 0 < compiled < 1
    assert 0 < refused < 1
    assert compiled + refused < ended < min(process, 4)


@pytest.mark.parametrize(("kind", "error", "seconds"), [("regex", InvalidRequest, 300), ("grammar", EngineBusy, 30)])
def test_what_was_refused_is_not_tried_again_for_a_while(kind: Kind, error: type[EngineError], seconds: float) -> None:
    grammars = Scripted()
    for _ in range(3):
        with pytest.raises(error):
            grammars.compile(StructuredOutputs(kind, "0"))
    assert grammars.tried == ["0"]
    grammars.now += seconds
    with pytest.raises(error):
        grammars.compile(StructuredOutputs(kind, "0"))
    assert grammars.tried == ["0", "0"]


STOP = 300


def mask(source: StructuredOutputs, *ends: int) -> GrammarMask:
    return GrammarMask(grammar(source), frozenset(ends or (END,)))


def test_only_what_can_go_on_to_a_choice_is_allowed_and_the_end_where_one_is_whole() -> None:
    choices = ["signed", "signed and sent"]
    laid = mask(StructuredOutputs("choice", json.dumps(choices)))
    assert all("signed".startswith(decoded([token])) for token in ids(laid))
    for token in encoded("signed"):
        assert token in ids(laid)
        laid.accept(token)
    after = ids(laid)
    assert END in after
    assert all(" and sent".startswith(decoded([token])) for token in after if token != END)
    for token in encoded(" and sent"):
        assert END not in ids(laid) or token == encoded(" and sent")[0]
        laid.accept(token)
    assert ids(laid) == [END]


def test_stop_tokens_are_allowed_exactly_where_the_grammar_may_end() -> None:
    zero = encoded("0")[0]
    laid = mask(StructuredOutputs("regex", "[0-9]{2,3}"), STOP, zero)
    one = encoded("1")[0]
    seen = []
    for _ in range(3):
        seen.append({token: token in ids(laid) for token in (END, STOP, zero, one)})
        laid.accept(one)
    assert seen[0] == seen[1] == {END: False, STOP: False, zero: False, one: True}
    assert seen[2] == {END: False, STOP: True, zero: True, one: True}
    assert ids(laid) == sorted((zero, STOP))


@given(seed=st.integers(0, 2**32), source=st.sampled_from(CONSTRAINTS))
@settings(deadline=None, max_examples=examples(60))
def test_the_mask_depends_on_the_accepted_tokens_alone(seed: int, source: StructuredOutputs) -> None:
    rng = random.Random(seed)
    asked, told = mask(source), mask(source)
    for _ in range(rng.randrange(1, 25)):
        allowed = ids(asked)
        for candidate in range(VOCAB):
            assert told.allows(candidate) in (None, candidate in allowed)
        other = grammar(source).matcher()  # drafts come and go on the lexer that all share
        for _ in range(rng.randrange(3)):
            other.validate_tokens([rng.randrange(VOCAB) for _ in range(5)])
            other.compute_ff_tokens()
            other.consume_token(rng.choice(allowed))
        token = rng.choice(allowed)
        if token == END:
            break
        asked.accept(token)
        told.accept(token)
    assert ids(told) == ids(asked)


@given(bits=st.lists(st.booleans(), min_size=1, max_size=200))
def test_forbidden_tokens_get_minus_infinity_and_no_other_bit_changes(bits: list[bool]) -> None:
    logits = np.linspace(-3, 3, len(bits), dtype=np.float32)
    words = np.packbits(np.array(bits, np.uint8), bitorder="little")
    words = np.concatenate([words, np.full(-len(words) % 4, 255, np.uint8)]).view(np.uint32)
    masked = logits.copy()
    forbid(masked, words)
    np.testing.assert_array_equal(masked, np.where(bits, logits, np.float32(-np.inf)))


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_what_reads_an_output_in_ever_more_ways_ends_before_it_holds_up_the_engine(asked: bool) -> None:
    laid = mask(StructuredOutputs("grammar", 'start: e\ne: e e | e e e | "x" | "y" | "x" e'))
    token = encoded("x")[0]

    def say(times: int) -> None:
        for _ in range(times):
            if not (asked and laid.allows(token)):
                laid.apply(np.zeros(VOCAB, np.float32))
            laid.accept(token)

    with pytest.raises(GrammarLimit):
        say(200)  # of 8,192 that a context may hold; each takes longer than its predecessor


def test_a_token_that_the_grammar_does_not_know_ends_in_an_error_that_says_so() -> None:
    laid = mask(StructuredOutputs("regex", "[0-9]{2}"))
    laid.accept(encoded("x")[0])
    with pytest.raises(UnusableLogits) as caught:
        laid.apply(np.zeros(VOCAB, np.float32))
    assert type(caught.value) is UnusableLogits
