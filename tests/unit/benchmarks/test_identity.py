"""Shares of identical answers: what is compared, and how sure a share is."""

from __future__ import annotations

import json

import pytest

from benchmarks.identity import (
    Answer,
    Asked,
    Compared,
    compare,
    first_difference,
    interval,
    messages_of,
    read_completion,
    report,
)
from benchmarks.specbench.questions import Question


class Scripted:
    """Answers with the number of the request, behind a beginning."""

    def __init__(self, name: str, beginning: str = "answer") -> None:
        self.name, self._beginning = name, beginning
        self.asked: list[Asked] = []

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return Answer(f"{self._beginning} to {asked.messages[-1][1]}")


def ask(messages: tuple[tuple[str, str], ...]) -> Asked:
    return Asked(messages, 9, 0.0, 7)


def test_prompts_go_on_from_plain_answers_for_both() -> None:
    plain, fast = Scripted("plain"), Scripted("fast", "other")
    list(compare([Question("1", "qa", ("a", "b"))], plain, fast, ask))
    second = (("user", "a"), ("assistant", "answer to a"), ("user", "b"))
    assert [asked.messages for asked in fast.asked] == [(("user", "a"),), second]
    assert [asked.messages for asked in plain.asked] == [(("user", "a"),), (("user", "a"),), second, second]


def test_messages_are_those_up_to_the_next_question() -> None:
    assert messages_of(("a", "b", "c"), ["x"]) == (("user", "a"), ("assistant", "x"), ("user", "b"))


def test_a_report_counts_what_differs_and_whether_plain_repeats_itself() -> None:
    one, other = Answer("abc"), Answer("abd")
    found = report([Compared("1", "qa", 0, one, one, one), Compared("2", "rag", 0, one, other, other)])
    assert (found["requests"], found["compared by"]) == (2, "text")
    assert (found["speculation = plain"]["share"], found["plain = plain again"]["share"]) == (0.5, 0.5)
    assert found["kinds"]["rag"]["identical"] == 0
    assert found["different"] == [{"question": "2", "turn": 0, "first difference": 2, "plain repeats itself": False}]


def test_token_ids_count_where_both_have_them() -> None:
    alike, other = Answer("ab", (1, 2)), Answer("ab", (3,))
    assert first_difference(alike, other) == 0
    assert first_difference(alike, Answer("ab")) is None
    assert first_difference(Answer("", (1,)), Answer("", (1, 2))) == 1
    assert report([Compared("1", "qa", 0, alike, alike, alike)])["compared by"] == "token ids"


def test_an_interval_says_how_little_a_few_requests_show() -> None:
    low, high = interval(20, 20)
    assert (round(low, 3), high) == (0.839, 1.0)
    low, high = interval(0, 20)
    assert (low, round(high, 3)) == (0.0, 0.161)
    assert [round(bound, 3) for bound in interval(50, 100)] == [0.404, 0.596]


def test_a_completion_is_read_with_token_ids_if_there() -> None:
    plain = {"choices": [{"message": {"content": "hi"}}]}
    assert read_completion(json.dumps(plain).encode()) == Answer("hi")
    plain["choices"][0]["token_ids"] = [1, 2]  # type: ignore[assignment]
    assert read_completion(json.dumps(plain).encode()) == Answer("hi", (1, 2))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": 1}}]}', b"1", b"[" * 99999]
)
def test_anything_else_is_no_completion(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_completion(data)
