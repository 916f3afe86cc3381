"""Conversations and questions of benchmarks, and how a load is made of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import Run
from benchmarks.load.callers import TENANTS, Seen, requests
from benchmarks.load.measure import figures
from benchmarks.specbench.conversation import Told, converse, geometric_mean, identical_share, summarised, told_by_all
from benchmarks.specbench.measure import FULL, Case, _groups
from benchmarks.specbench.peers import GreedyPeer
from benchmarks.specbench.questions import (
    KINDS,
    OWN,
    Question,
    QuestionsInvalid,
    first,
    lengthened,
    load_questions,
)


def test_our_own_file_has_twenty_of_each_kind_and_none_twice() -> None:
    questions = load_questions(OWN)
    assert {kind: len(each) for kind, each in questions.items()} == dict.fromkeys(KINDS, 20)
    assert all(len(question.turns) == 2 for question in questions["multi-turn"])
    turns = [turn for each in questions.values() for question in each for turn in question.turns]
    assert len(set(turns)) == len(turns)
    assert {kind: len(each) for kind, each in first(questions, 3).items()} == dict.fromkeys(KINDS, 3)


def test_categories_of_mt_bench_are_multi_turn(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": []}\n'
        '{"question_id": 401, "category": "qa", "turns": ["c"]}\n\n'
    )
    assert load_questions(path) == {
        "multi-turn": [Question("81", "multi-turn", ("a", "b"))],
        "qa": [Question("401", "qa", ("c",))],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no questions"),
        ("{", "line 1: is not JSON"),
        ("[]", "line 1: expected an object"),
        (
            '{"category": "qa", "turns": ["a"]}\n{"category": "poems", "turns": ["a"]}',
            "line 2: category: expected one of",
        ),
        ('{"category": "qa", "turns": "a"}', "turns: expected a list of texts"),
        ('{"category": "qa", "turns": []}', "turns: expected a list of texts"),
        ('{"category": "qa", "turns": ["a", 1]}', "turns: expected a list of texts"),
        ('{"category": ["qa"], "turns": ["a"]}', "category: expected one of"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(QuestionsInvalid, match=said):
        load_questions(tmp_path / "q.jsonl")


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff")
    for name in ("absent", "latin"):
        with pytest.raises(QuestionsInvalid, match="cannot be read"):
            load_questions(tmp_path / name)


@pytest.mark.parametrize("tokens", [8, 50, 500])
def test_a_context_is_as_long_as_words_allow(tokens: int) -> None:
    question = Question("1", "qa", ("what is that?", "and then?"))
    longer = lengthened(question, tokens, ["one two " * 100, "three " * 400], str.split)
    assert len(longer.turns[0].split()) == tokens
    assert longer.turns[0].endswith("\n\nwhat is that?")
    assert longer.turns[1:] == question.turns[1:]


class Words:
    """A tokenizer for which a token is a character."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(letter) for each in messages for letter in f"{each['role'][0]}{each['content']}"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class Echo:
    """Answers each prompt with its last letter, in half a second."""

    def __init__(self, name: str, most: int = 99, digests: tuple[str, ...] = ("d",)) -> None:
        self.name, self._most, self._digests = name, most, digests
        self.prompts: list[str] = []

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run | None:
        if len(prompts) > self._most:
            return None
        self.prompts += ["".join(map(chr, prompt)) for prompt in prompts]
        return Run(0.5, [(prompt[-1],) for prompt in prompts], self._digests, mean_acceptance_length=0.5)


TWO = Question("1", "multi-turn", ("a", "b"))
ONE = Question("2", "multi-turn", ("c",))


def test_each_turn_goes_on_from_the_contenders_own_answers() -> None:
    contender = Echo("kolm off")
    told = converse(contender, [TWO, ONE], Words(), 0.0, 9)
    assert contender.prompts == ["ua", "uc", "uaaaub"]
    assert told == Told(1.0, ((97, 98), (99,)), passes=6.0)


def test_who_takes_no_batch_or_counts_no_passes_says_so() -> None:
    assert converse(Echo("peer", most=1), [TWO, ONE], Words(), 0.0, 9) is None
    told = converse(Echo("peer", digests=()), [ONE], Words(), 0.0, 9)
    assert told is not None
    assert told.passes is None


def test_all_are_asked_but_those_that_take_no_such_batch() -> None:
    contenders: list[Any] = [Echo("a"), Echo("b", most=0)]
    told = told_by_all(contenders, [ONE], Words(), 0.0, 9, random.Random(0))
    assert list(told) == ["a"]
    assert contenders[0].prompts == ["uc"]


def test_figures_are_totals_of_a_kind_and_geometric_means_over_kinds() -> None:
    def group(off: float, fast: float) -> dict[str, Told]:
        return {"off": Told(off, ((1, 2, 3, 4),), 4.0), "fast": Told(fast, ((1, 2, 3, 4),), 2.0)}

    told = {"qa": [group(1.0, 0.5), group(3.0, 0.5)], "rag": [group(1.0, 1.0)]}
    figures = summarised(told, {"fast": "off"})
    assert figures["fast"]["kinds"]["qa"]["speedup"] == 4.0
    assert figures["fast"]["speedup"] == 2.0
    assert figures["fast"]["acceptance length"] == 2.0
    assert figures["fast"]["tokens_per_second"] == 6.0
    assert figures["off"]["speedup"] == 1.0
    assert figures["fast"]["kinds"]["qa"]["requests"] == 2
    assert figures["fast"]["error"] is None, "one group of a kind says nothing of how far it is off"


def test_the_error_of_a_speedup_is_how_far_questions_differ() -> None:
    def group(fast: float) -> dict[str, Told]:
        return {"off": Told(1.0, ((1,),), 1.0), "fast": Told(fast, ((1,),), 1.0)}

    alike = summarised({"qa": [group(0.5)] * 4}, {"fast": "off"})["fast"]
    assert (alike["speedup"], alike["error"]) == (2.0, 0.0)
    three = summarised({"qa": [group(0.5), group(0.5), group(0.25)]}, {"fast": "off"})["fast"]
    assert three["error"] == 0.444, "without one 8/3, 8/3 and 2: sqrt(2/3 of the sum of their squared distances)"
    apart = summarised({"qa": [group(0.5), group(0.25)], "rag": [group(0.5)] * 2}, {"fast": "off"})["fast"]
    assert apart["kinds"]["qa"]["error"] == 1.0, "without one 2, without the other 4: half of what they are apart"
    assert apart["error"] == pytest.approx(0.5 * 1.0 / (2 / 0.75) * (2 * 2 / 0.75) ** 0.5, abs=1e-3)


def test_who_was_not_asked_for_a_kind_has_no_figures_for_it() -> None:
    told = {
        "qa": [{"off": Told(1.0, ((1,),), None)}],
        "rag": [{"off": Told(1.0, ((1,),), None), "peer": Told(1.0, ((2,),), None)}],
    }
    figures = summarised(told, {"peer": "off"})
    assert list(figures["peer"]["kinds"]) == ["rag"]
    assert (figures["peer"]["acceptance length"], figures["peer"]["identical to plain"]) == (None, 0.0)


def test_identity_is_counted_by_conversation() -> None:
    one, other = Told(1.0, ((1, 2), (3,)), None), Told(1.0, ((1, 2), (4,)), None)
    assert identical_share([(one, other)]) == 0.5
    assert identical_share([]) is None
    assert geometric_mean([]) is None
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_kinds_take_turns_alone_or_in_one_queue() -> None:
    rag = Question("3", "rag", ("d",))
    asked = {"multi-turn": [TWO, ONE], "rag": [rag]}
    assert _groups(asked, 1) == [("multi-turn", [TWO]), ("rag", [rag]), ("multi-turn", [ONE])]
    assert _groups(asked, 2) == [("all kinds", [TWO, rag, ONE])]


def test_a_peer_ends_with_the_token_that_ends_a_text_and_takes_one_greedy_request() -> None:
    peer = GreedyPeer("peer", [9], lambda prompt, tokens: [*prompt, 9, 1, 1])
    run = peer.run([[5, 6]], 0.0, 10)
    assert run is not None
    assert run.tokens == [(5, 6, 9)]
    cut = peer.run([[5, 6]], 0.0, 1)
    assert cut is not None
    assert cut.tokens == [(5,)]
    assert peer.run([[5], [6]], 0.0, 10) is None
    assert peer.run([[5]], 1.0, 10) is None


@pytest.mark.parametrize(("text", "case"), [("0:1", FULL[0]), ("1:16", FULL[5]), ("0:1:2048", FULL[7])])
def test_a_case_is_named_by_temperature_batch_and_context(text: str, case: Case) -> None:
    assert Case.parse(text) == case


def test_requests_mix_tenants_methods_lengths_and_temperatures_and_are_the_same_each_time() -> None:
    asked = requests(24, ["auto", "lookahead", "suffix"])
    assert asked == requests(24, ["auto", "lookahead", "suffix"])
    assert Counter(each.request.tenant for each in asked) == dict.fromkeys(TENANTS, 12)
    assert Counter(each.method for each in asked) == dict.fromkeys(["auto", "lookahead", "suffix"], 8)
    assert len({each.request.params.max_tokens for each in asked}) == 4
    assert {each.request.params.temperature for each in asked} == {0.0, 0.7}
    assert all(each.request.messages for each in asked)


def test_figures_are_of_all_runs_together_and_count_what_failed() -> None:
    quick = Seen(seconds=1.0, tokens=100, first=[0.1, 0.2], gaps=[0.01] * 98, outputs={0: "a", 1: "b"})
    slow = Seen(seconds=4.0, tokens=100, first=[0.3], gaps=[0.03] * 2, outputs={0: "a"}, failures=Counter(QUEUE_FULL=1))
    found = figures([quick, slow])
    assert (found["requests"], found["failures"]) == (3, {"QUEUE_FULL": 1})
    assert found["tokens_per_second"] == 62.5
    assert found["first_token_ms"]["p50"] == 200.0
    assert found["inter_token_ms"] == {"p50": 10.0, "p99": 30.0}
