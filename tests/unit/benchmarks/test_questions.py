"""Spec-Bench's questions: our own file, theirs, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.specbench.questions import (
    KINDS,
    OWN,
    Question,
    QuestionsInvalid,
    first,
    lengthened,
    load_questions,
    own_pages,
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


def test_pages_that_are_too_short_are_said_to_be() -> None:
    with pytest.raises(ValueError, match="fewer than 9 tokens"):
        lengthened(Question("1", "qa", ("a",)), 9, ["b c"], str.split)


def test_the_documentation_is_long_enough_for_the_longest_context() -> None:
    assert len(" ".join(own_pages())) > 6144 * 6
