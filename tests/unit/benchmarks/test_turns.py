"""The benchmarks' figures follow from the runs: ratios by turn, and identity with off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random

from benchmarks.engines import Run
from benchmarks.methods import _summary
from benchmarks.turns import drafted, ratio, speeds, take_turn

OFF, OTHER = "kolm off", "kolm rest"


def _run(seconds: float, tokens: tuple[int, ...] = (1, 2, 3, 4), digest: str = "a") -> Run:
    return Run(seconds, [tokens], (digest,), 2.0, 2, (2, 1))


class Recorded:
    """A contender whose runs take the seconds that it was given, one after the other; it writes down its turns."""

    def __init__(self, name: str, seconds: list[float], log: list[str]) -> None:
        self.name, self._seconds, self._log = name, seconds, log

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run:
        self._log.append(self.name)
        return _run(self._seconds.pop(0))


def test_contenders_go_there_and_back() -> None:
    log: list[str] = []
    turn = take_turn([Recorded("a", [1.0, 3.0], log), Recorded("b", [1.0, 1.0], log)], [[1]], 0.0, 4, Random(1))
    assert log in (["b", "a", "a", "b"], ["a", "b", "b", "a"])
    assert turn["a"] is not None
    assert turn["a"].seconds == 2.0


def test_each_contender_follows_each_of_the_others_about_as_often() -> None:
    log: list[str] = []
    contenders = [Recorded(name, [1.0] * 400, log) for name in "abcd"]
    dice = Random(0)
    for _ in range(200):
        take_turn(contenders, [[1]], 0.0, 4, dice)
    followed = Counter(pairwise(log))
    assert log[:8] == log[:4] + log[:4][::-1]
    for one, other in permutations("abcd", 2):
        assert 70 < followed[one, other] < 130


def test_a_ratio_is_the_median_over_the_turns_in_which_both_took_part() -> None:
    turns = [{OFF: _run(1.0), OTHER: _run(s)} for s in (0.5, 0.25, 1.0)] + [{OFF: _run(1.0), OTHER: None}]
    assert ratio(turns, OTHER, OFF) == 2.0
    assert ratio(turns, OTHER, "somebody else") is None
    assert speeds(turns) == {OFF: 4.0, OTHER: 8.0}


def test_one_other_token_or_one_other_logit_is_not_identical() -> None:
    same = [{OFF: _run(1.0), OTHER: _run(0.5)}] * 3
    assert drafted(same, OTHER) == {
        "over off": 2.0, "acceptance length": 2.0, "accepted by depth": [1.0, 0.5], "identical to off": True,
    }  # fmt: skip
    for different in (_run(0.5, tokens=(1, 2, 3, 5)), _run(0.5, digest="b")):
        assert not drafted([*same, {OFF: _run(1.0), OTHER: different}], OTHER)["identical to off"]


def test_auto_is_compared_with_the_best_single_method_by_the_turn_and_in_all() -> None:
    """By the turn one is the best in most of them, in all the other one, which loses nothing in a long answer."""
    seconds = {OFF: (4.0, 4.0, 40.0), OTHER: (1.0, 1.0, 40.0), "kolm eagle3": (2.0, 2.0, 20.0)}
    auto = {"kolm auto": (1.25, 1.0, 24.0), "transformers prompt lookup": (8.0, 8.0, 8.0)}
    turns = [{name: _run(each[n]) for name, each in (seconds | auto).items()} for n in range(3)]
    found = _summary(turns)
    assert found["best single"] == "rest"
    assert found["auto"]["over the best single"] == 1.0
    assert found["auto"]["over the quickest single in all"] == ("eagle3", round(24.0 / 26.25, 3))
