"""Ranks that meet: what they are told by the environment, what they tell each other, and what stands against it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from services.generation.target.canonical.program.share import Share
from services.generation.target.errors import RankLost, RanksDisagree, RanksUnsupported
from services.generation.target.parallel import meeting, order
from services.generation.target.parallel.agreement import agree
from services.generation.target.parallel.link import Link
from services.generation.target.parallel.loading import load_follower, load_leader
from services.generation.target.parallel.meeting import Launched, meet_in_folder
from services.generation.target.parallel.order import FIRST_WORDS, Kind
from services.generation.target.rows import RowsBuilder
from tests.fakes.tiny_model import make_tiny_model

Found = TypeVar("Found")
TORCHRUN = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}


def linked(folder: Path, *works: Callable[[Link], Found]) -> list[Found | BaseException]:
    """The result, or the error, of work on each rank, a thread of this process."""

    def run(rank: int, work: Callable[[Link], Found]) -> Found | BaseException:
        try:
            return work(meet_in_folder(folder, Share(rank, len(works)), 60.0))
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, range(len(works)), works))


def test_a_launched_rank_is_what_the_environment_says() -> None:
    assert Launched.of({}, 2) is None
    assert Launched.of({"RANK": "1", "WORLD_SIZE": "2"}, 2) is None
    assert Launched.of(TORCHRUN, 2) == Launched(Share(1, 2), 1, "10.0.0.1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE is 3; expected 2, as --tensor-parallel says"),
        ({"RANK": "2"}, "RANK is 2; expected at most 1"),
        ({"RANK": ""}, "RANK is ''; expected a whole number"),
        ({"LOCAL_WORLD_SIZE": "one"}, "LOCAL_WORLD_SIZE is 'one'; expected a whole number"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT: expected the port"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_by_variable(change: dict[str, str], message: str) -> None:
    with pytest.raises(RanksUnsupported, match=message):
        Launched.of(TORCHRUN | change, 2)


def test_orders_of_any_length_arrive_as_they_were_given(tmp_path: Path) -> None:
    orders = [
        (kind, [np.arange(length, dtype=np.int32) for length in lengths])
        for kind, lengths in [
            (Kind.ANSWER, []),
            (Kind.MOVE, [3, 0]),
            *((Kind.EMBED, [FIRST_WORDS - 3 + more]) for more in (-1, 0, 1, 2 * FIRST_WORDS)),
        ]
    ]
    _, taken = linked(
        tmp_path,
        lambda link: [order.give(link, kind, arrays) for kind, arrays in orders],
        lambda link: [order.take(link) for _ in orders],
    )
    assert isinstance(taken, list)
    for (kind, arrays), found in zip(orders, taken, strict=True):
        assert found[0] == kind
        assert [array.tolist() for array in found[1]] == [array.tolist() for array in arrays]


@pytest.mark.parametrize("adapter", [-1, 3])
def test_rows_arrive_as_they_were_given(adapter: int) -> None:
    builder = RowsBuilder()
    builder.add_tree([3, 1], 70, [5, 6, 7], [-1, 0, 0], adapter)
    builder.add_chunk([2], 0, [8, 9], False)
    rows = builder.build()
    found = order.rows_of(order.arrays_of(rows))
    for name in rows.__dataclass_fields__:
        expected, got = getattr(rows, name), getattr(found, name)
        assert (expected is None and got is None) or (expected.dtype == got.dtype and (expected == got).all()), name


def test_ranks_of_two_versions_refuse_each_other(tmp_path: Path) -> None:
    def saying(code: str) -> Callable[[Link], None]:
        return lambda link: agree(link, {"code": code, "base": "cidv1:x"})

    found = linked(tmp_path, saying("a"), saying("a"), saying("b"))
    assert {type(each) for each in found} == {RanksDisagree}
    assert {str(each).partition(";")[0] for each in found} == {"tensor parallel: rank 2 has code b, rank 0 has a"}


@pytest.mark.parametrize("other", ["another model", "no model", "another cache"])
def test_ranks_with_other_models_refuse_each_other(other: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    second = model if other == "another cache" else tmp_path / "second"
    if other == "another model":
        make_tiny_model(second, seed=1)
    tokens = 1024 if other == "another cache" else 2048
    found = linked(
        tmp_path,
        lambda link: load_leader(model, link=link, cache_tokens=2048),
        lambda link: load_follower(second, link=link, cache_tokens=tokens),
    )
    assert [type(each) for each in found] == [RanksDisagree] * 2
    what = {"another cache": "options", "another model": "base cidv1", "no model": "base none"}[other]
    assert f"rank 1 has {what}" in str(found[0])


def test_a_rank_that_has_ended_meanwhile_ends_the_waiting(tmp_path: Path) -> None:
    def ended() -> None:
        raise RankLost("rank 1 has ended")

    with pytest.raises(RankLost, match="rank 1 has ended"):
        meet_in_folder(tmp_path, Share(0, 2), 60.0, ended)


def test_ranks_that_do_not_come_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "COMING_SECONDS", 0.0)
    with pytest.raises(RankLost, match="rank 1, rank 2 of 3 did not come"):
        meet_in_folder(tmp_path, Share(0, 3), 60.0)


def test_a_rank_that_goes_is_noticed_by_those_that_wait_for_it(tmp_path: Path) -> None:
    gone = threading.Event()

    def waits(link: Link) -> None:
        gone.wait(60)
        order.take(link) if link.share.rank else order.give(link, Kind.ANSWER)
        agree(link, {})

    def goes(link: Link) -> None:
        del link
        gone.set()

    found = linked(tmp_path, waits, goes)
    assert isinstance(found[0], RankLost)
    assert "has ended or does not answer" in str(found[0])
