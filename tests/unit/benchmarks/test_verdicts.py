"""Counts of verdicts, and the fault of speculation that they are measured with."""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from benchmarks import verdicts
from benchmarks.verdicts import ACCEPTED, DRAFTED, Case, FaultySpeculation, Judged, looked_up, read, row
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
    counted = row(Case(0.0, 8, 0.02, DRAFTED), found)
    assert (counted["SAME"], counted["DEVIATION"], counted["UNSTABLE"], counted["other"]) == (2, 2, 0, 0)


def test_results_have_the_share_and_the_answers_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_SCRATCH", tmp_path)
    for kind in ("honest", "0.02 of drafted", "0.02 of accepted"):
        tmp_path.joinpath(f"vllm 1~n-gram~{kind}~0~8.jsonl").write_bytes(encode(judged(0, "SAME")) + b"\n{")
    cases = [
        {(each["share replaced"], each["replaced of"], each["answers"]) for each in found["cases"]}
        for found in verdicts.concluded()
    ]
    assert sorted(cases, key=len) == [{(0.0, "", 1)}, {(0.02, DRAFTED, 1), (0.02, ACCEPTED, 1)}]


class Drafting:
    """An honest llama-server that counts on from the last token. After an answer's first token it drafts three tokens a
    pass, of which it accepts some.
    """

    def __init__(self, accepted: int) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self._accepted = accepted

    async def answer(self, body: Mapping[str, Any], _: int, read: Callable[[Any], None], *__: Any) -> None:
        self.bodies.append(body)
        timings: dict[str, float] = {"predicted_ms": 1.0}
        for made in range(body["n_predict"]):
            if passes := -(-made // (self._accepted + 1)):
                timings = {"draft_n": 3 * passes, "draft_n_accepted": self._accepted * passes}
            token = body["prompt"][-1] + 1 + made
            read({"tokens": [token], "content": "x", "tokens_predicted": made + 1, "timings": timings})
        read({"tokens": [], "content": "", "stop": True, "stop_type": "limit", "timings": timings})


@pytest.mark.parametrize("accepted", [0, 2])
@pytest.mark.parametrize("of", [DRAFTED, ACCEPTED])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_drafts_are_replaced_and_the_engine_goes_on_from_there(
    share: float, of: str, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, events = Drafting(accepted), list[Mapping[str, Any]]()
    monkeypatch.setattr(Upstream, "answer", lambda _, *arguments, **__: honest.answer(*arguments))
    case = Case(0.0, 1, share, of)
    faulty = FaultySpeculation(DIALECTS["llama-server"], "http://127.0.0.1:1", case, random.Random(1))
    asyncio.run(faulty.answer({"prompt": [7, 1000], "n_predict": 20}, 99, events.append))
    ids = [token for event in events for token in event["ids"]]
    context = [7, 1000, *ids]
    other = [place for place in range(2, len(context)) if context[place] != context[place - 1] + 1]
    assert (len(ids), len(other)) == (20, faulty.replaced.get((7, 1000), 0))
    assert all(context[place] in context[:place] for place in other)
    assert (len(other) > 0) == (share > 0.0 and (of == DRAFTED or accepted > 0))
    assert [body["prompt"] for body in honest.bodies[1:]] == [context[: place + 1] for place in other if place < 21]
    assert [event["finish"] for event in events if event.get("finish")] == ["length"]
    (drafted,) = (event["drafted"] for event in events if event.get("drafted"))
    assert (drafted.passes + drafted.accepted, drafted.accepted > 0) == (20, accepted > 0)
    assert drafted.proposed >= max(drafted.accepted, len(other))


def test_a_token_in_place_of_a_rejected_draft_is_replaced_by_that_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, events = Drafting(0), list[Mapping[str, Any]]()
    monkeypatch.setattr(Upstream, "answer", lambda _, *arguments, **__: honest.answer(*arguments))
    case = Case(0.0, 1, 1.0, DRAFTED)
    faulty = FaultySpeculation(DIALECTS["llama-server"], "http://127.0.0.1:1", case, random.Random(1))
    prompt = [7, 1000, 1001, 90, 91, 1000]
    asyncio.run(faulty.answer({"prompt": prompt, "n_predict": 2}, 99, events.append))
    assert [token for event in events for token in event["ids"]] == [1001, 90]


def test_the_tokens_after_the_longest_n_gram_are_looked_up() -> None:
    assert looked_up([1, 2, 8, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]) == [4, 5, 6, 7]
    assert looked_up([1, 2, 8, 9, 1, 2]) == [8, 9, 1, 2]
    assert looked_up([3, 3, 3]) == [3]
    assert looked_up([1, 2, 3, 2]) == ()
