"""Conversations and questions of benchmarks, how a load is made of them, and prompts that are held out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.engines import Run
from benchmarks.load import Seen, figures
from benchmarks.specbench.conversation import ConversationRun, converse, geometric_mean, identical_share, summarise
from benchmarks.specbench.questions import OWN, Question, QuestionsInvalid, load_questions
from demo.smollm2.prompts import Choice, is_held_out, words


def test_categories_of_mt_bench_are_multi_turn(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(
        '{"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": []}\n'
        '{"question_id": 401, "category": "qa", "turns": ["c\u2028d"]}\n\n'
    )
    assert load_questions(path) == {
        "multi-turn": [Question("81", "multi-turn", ("a", "b"))],
        "qa": [Question("401", "qa", ("c\u2028d",))],
    }


@pytest.mark.parametrize(("file", "counts"), [(OWN, [20] * 6), (OWN.with_name("edits.jsonl"), [12])])
def test_own_questions_are_so_many_of_each_kind(file: Path, counts: list[int]) -> None:
    assert [len(questions) for questions in load_questions(file).values()] == counts


@pytest.mark.parametrize(
    ("text", "problem"),
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
def test_a_file_that_is_wrong_is_refused_by_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(QuestionsInvalid, match=problem):
        load_questions(tmp_path / "q.jsonl")


class Words:
    """A tokenizer for which a token is a character."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(letter) for each in messages for letter in f"{each['role'][0]}{each['content']}"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class Echo:
    """Answers each prompt with its last letter, in half a second."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prompts: list[str] = []

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run:
        self.prompts += ["".join(map(chr, prompt)) for prompt in prompts]
        digests = tuple(str(prompt[-1]) for prompt in prompts)
        return Run(0.5, [(prompt[-1],) for prompt in prompts], digests, mean_acceptance_length=0.5)


TWO = Question("1", "multi-turn", ("a", "b"))
ONE = Question("2", "multi-turn", ("c",))


def test_each_turn_goes_on_from_the_contenders_own_answers() -> None:
    contender = Echo("kolm off")
    runs = converse(contender, [TWO, ONE], Words(), 0.0, 9)
    assert contender.prompts == ["ua", "uc", "uaaaub"]
    assert runs == ConversationRun(1.0, ((97, 98), (99,)), 6.0, (("97", "98"), ("99",)))


def test_figures_are_totals_of_a_kind_and_geometric_means_over_kinds() -> None:
    def group(off: float, fast: float) -> dict[str, ConversationRun]:
        return {"off": ConversationRun(off, ((1, 2, 3, 4),), 4.0), "fast": ConversationRun(fast, ((1, 2, 3, 4),), 2.0)}

    runs = {"qa": [group(1.0, 0.5), group(3.0, 0.5)], "rag": [group(1.0, 1.0)]}
    figures = summarise(runs, "off")
    assert figures["fast"]["kinds"]["qa"]["speedup"] == 4.0
    assert figures["fast"]["speedup"] == 2.0
    assert figures["fast"]["acceptance length"] == 2.0
    assert figures["fast"]["tokens_per_second"] == 6.0
    assert figures["off"]["speedup"] == 1.0
    assert figures["fast"]["kinds"]["qa"]["requests"] == 2
    assert figures["fast"]["error"] is None, "one group of a kind gives no error"


def test_identity_is_counted_by_conversation() -> None:
    one, other = ConversationRun(1.0, ((1, 2), (3,)), 2.0), ConversationRun(1.0, ((1, 2), (4,)), 2.0)
    assert identical_share([(one, other)]) == 0.5
    drawn, redrawn = (replace(one, digests=(("a",), (last,))) for last in "bc")
    assert (identical_share([(drawn, drawn)]), identical_share([(drawn, redrawn)])) == (1.0, 0.5)
    assert identical_share([]) is None
    assert geometric_mean([]) is None
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_figures_are_of_all_runs_together_and_count_what_failed() -> None:
    quick = Seen(seconds=1.0, tokens=100, first=[0.1, 0.2], gaps=[0.01] * 98, outputs={0: "a", 1: "b"})
    slow = Seen(seconds=4.0, tokens=100, first=[0.3], gaps=[0.03] * 2, outputs={0: "a"}, failures=Counter(QUEUE_FULL=1))
    found = figures([quick, slow])
    assert (found["requests"], found["failures"]) == (3, {"QUEUE_FULL": 1})
    assert found["tokens_per_second"] == 62.5
    assert found["first_token_ms"]["p50"] == 200.0
    assert found["inter_token_ms"] == {"p50": 10.0, "p99": 30.0}


@pytest.mark.slow
def test_no_subject_of_the_held_out_prompts_is_one_of_the_others() -> None:
    topics = words("knowledge")["topics"]
    drawn = {split: {Choice(Random(n), split).subject(topics) for n in range(2000)} for split in ("train", "held_out")}
    assert drawn["held_out"] == {topic for topic in topics if is_held_out(topic)}
    assert drawn["train"] == set(topics) - drawn["held_out"]
