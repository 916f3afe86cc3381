"""A model's answers for a datastore: each prompt is answered once, whatever interrupts the run."""

from pathlib import Path

import pytest

from services.datastores.answering import AT_ONCE, answer_prompts, answers_file
from services.training.prompts import Answer, AnswerFile, Prompt
from tests.fakes.table_target import ContextTarget

PROMPTS = [Prompt(f"p{number}", "d", (number, 3, 5 + number % 7)) for number in range(2 * AT_ONCE + 5)]
TOKENS = 9


def answered(path: Path, prompts: list[Prompt] = PROMPTS, steps: int = 10_000) -> tuple[bool, dict[str, Answer]]:
    """Whether all were answered within so many steps, and the answers on disk."""
    left, file, counts = iter(range(steps)), AnswerFile(path), list[int]()
    complete = answer_prompts(
        ContextTarget(vocab=64), prompts, file, TOKENS, counts.append, lambda: next(left, None) is None
    )
    found = list(file)
    assert counts == sorted(counts)
    assert counts[-1] == len(found) == len({answer.id for answer in found})
    return complete, {answer.id: answer for answer in found}


@pytest.mark.parametrize(
    ("steps", "torn"), [(0, 0), (TOKENS + 2, 0), (TOKENS + 2, 7), (2 * TOKENS + 5, 0), (2 * TOKENS + 5, 7)]
)
def test_an_interrupted_run_continues_to_the_same_answers(steps: int, torn: int, tmp_path: Path) -> None:
    complete, whole = answered(tmp_path / "whole.jsonl")
    assert (complete, len(whole)) == (True, len(PROMPTS))
    assert all(len(answer.output) == TOKENS for answer in whole.values())
    path = tmp_path / "parts.jsonl"
    complete, _ = answered(path, steps=steps)
    assert not complete
    if torn:
        path.write_bytes(path.read_bytes()[:-torn])
    assert answered(path) == (True, whole)


def test_more_prompts_later_add_answers_and_a_changed_prompt_gets_its_own(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    _, few = answered(path, PROMPTS[:3])
    _, more = answered(path, PROMPTS[:8])
    assert {name: more[name] for name in few} == few
    assert len(more) == 8
    changed, file = Prompt("p0", "d", (60, 61)), AnswerFile(path)
    answer_prompts(ContextTarget(vocab=64), [changed], file, TOKENS, lambda _: None, lambda: False)
    assert [answer.prompt for answer in file if answer.id == "p0"] == [PROMPTS[0].tokens, (60, 61)]


def test_another_base_or_limit_has_another_file() -> None:
    places = {answers_file(Path("store"), "cidv1:sha256:" + digits * 64, most) for digits in "ab" for most in (4, 32)}
    assert len(places) == 4
    assert {place.parent for place in places} == {Path()}
