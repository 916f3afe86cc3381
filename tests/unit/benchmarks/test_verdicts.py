"""Counts of verdicts, and the fault of speculation that they are measured with."""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from benchmarks import verdicts
from benchmarks.verdicts import Case, FaultySpeculation, Judged, read, row
from services.generation.remote.dialects import DIALECTS
from services.generation.remote.upstream import Upstream


def judged(question: int, outcome: str, tokens: int = 50, position: int | None = None) -> Judged:
    return Judged(question, tokens, 20, 10, 0, True, outcome, position=position)


def test_tokens_are_read_up_to_each_deviation_and_after_the_last() -> None:
    found = [
        judged(0, "SAME"),
        judged(1, "DEVIATION", position=9),
        judged(2, "DEVIATION", position=0),
        judged(3, "SAME"),
    ]
    assert read(found) == [60, 1, 50]
    counted = row(Case(0.0, 8, 0.02), found)
    assert (counted["SAME"], counted["DEVIATION"], counted["UNSTABLE"], counted["other"]) == (2, 2, 0, 0)


def test_results_have_the_share_and_the_answers_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_SCRATCH", tmp_path)
    for kind in ("honest", "0.02 replaced", "0.02 replaced begun"):
        tmp_path.joinpath(f"vllm 1~n-gram~{kind}~0~8.jsonl").write_bytes(encode(judged(0, "SAME")) + b"\n{")
    (found,) = verdicts.concluded()
    assert {(each["share replaced"], each["begun"], each["answers"]) for each in found["cases"]} == {
        (0.0, False, 1), (0.02, False, 1), (0.02, True, 1),
    }  # fmt: skip


class Drafting:
    """An honest llama-server whose every second token is an accepted draft: it counts on from the last token."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []

    async def answer(self, body: Mapping[str, Any], _: int, read: Callable[[Any], None], *__: Any) -> None:
        self.bodies.append(body)
        for made in range(1, body["n_predict"] + 1):
            timings = {"draft_n": made, "draft_n_accepted": made // 2}
            token = body["prompt"][-1] + made
            read({"tokens": [token], "content": "x", "tokens_predicted": made, "timings": timings})
        read({"tokens": [], "content": "", "stop": True, "stop_type": "limit", "timings": timings})


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_accepted_drafts_are_replaced_and_the_engine_goes_on_from_there(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, events = Drafting(), list[Mapping[str, Any]]()
    monkeypatch.setattr(Upstream, "answer", lambda _, *arguments, **__: honest.answer(*arguments))
    faulty = FaultySpeculation(DIALECTS["llama-server"], "http://127.0.0.1:1", share, random.Random(1))
    asyncio.run(faulty.answer({"prompt": [7, 1000], "n_predict": 20}, 99, events.append))
    ids = [token for event in events for token in event["ids"]]
    context = [7, 1000, *ids]
    other = [place for place in range(2, len(context)) if context[place] != context[place - 1] + 1]
    assert (len(ids), len(other)) == (20, faulty.replaced.get((7, 1000), 0))
    assert all(context[place] in context[:place] for place in other)
    assert (len(other) > 0) == (share > 0.0)
    assert [body["prompt"] for body in honest.bodies[1:]] == [context[: place + 1] for place in other if place < 21]
    assert [event["finish"] for event in events if event.get("finish")] == ["length"]
    (drafted,) = (event["drafted"] for event in events if event.get("drafted"))
    assert (drafted.passes + drafted.accepted, drafted.proposed >= drafted.accepted >= len(other)) == (20, True)
    assert drafted.accepted > 0
