"""What has been learned outlives a process, and a file that is not right never gets in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.belief import Evidence
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.kept import Learned, from_document, to_document
from services.generation.drafting.auto.tally import FARTHEST, Kind, Record, Tally
from services.generation.method_records import method_records
from services.generation.record_file import RecordFile
from tests.fakes.engine_runs import CHEAP_ROWS

BASE, OTHER = "cidv1:sha256:" + "1" * 64, "cidv1:sha256:" + "2" * 64
TALLIED, COMPARED = Tally._fields, Evidence._fields

sums = st.floats(1e-6, 1e9)
tallies = st.builds(Tally, *(sums for _ in TALLIED))
evidence = st.builds(
    lambda weight, mean, scatter: Evidence(weight, weight * mean, weight * min(FARTHEST**2, mean**2 + scatter)),
    st.floats(0.01, 200), st.floats(-FARTHEST, FARTHEST), st.floats(0, 10),
)  # fmt: skip
drafting = st.sampled_from([Arm("eagle3/one", 4), Arm("eagle3/one", 8), Arm("lookahead"), Arm("draft", 2)])
pairs = st.tuples(drafting, drafting | st.just(OFF)).filter(lambda pair: pair[0] != pair[1])
kinds = st.sampled_from([Kind(None, False), Kind(None, True, "code"), Kind(None, True), Kind(OTHER, True, "rag")])
known = st.builds(Learned, st.dictionaries(drafting | st.just(OFF), tallies), st.dictionaries(pairs, evidence), sums)
everything = st.dictionaries(kinds, known, max_size=3)


def records(learned: Mapping[Kind, Learned]) -> dict[Kind, Record]:
    return {kind: Record(0.998, *each) for kind, each in learned.items()}


def some() -> dict[str, Any]:
    draft = Arm("draft", 4)
    tallies = {draft: Tally(*(2.0 for _ in TALLIED)), OFF: Tally(*(1.0 for _ in TALLIED))}
    compared = {(draft, OFF): Evidence(3.0, 1.5, 1.0), (draft, Arm("rest")): Evidence(1.0, -0.5, 0.3)}
    learned = {Kind(OTHER, True, "structured"): Learned(tallies, compared, 3.0)}
    document: dict[str, Any] = json.loads(json.dumps(to_document(BASE, records(learned))))
    return document


@given(everything)
def test_what_is_kept_comes_back(learned: dict[Kind, Learned]) -> None:
    document = json.loads(json.dumps(to_document(BASE, records(learned))))
    assert from_document(document, BASE) == learned
    assert from_document(document, OTHER) == {}


@given(everything)
def test_what_comes_back_can_be_worked_with(learned: dict[Kind, Learned]) -> None:
    """However little sense it makes: no file leaves a server without its records."""
    drafter = auto()
    drafter.restore(from_document(to_document(BASE, records(learned)), BASE))
    assert all(0.0 < message.expected_gain < 1e9 for message in method_records(drafter))
    for record in drafter.records.values():
        bandit = Bandit((Arm("lookahead"), Arm("draft", 2), OFF), record, random.Random(0))
        for _ in range(9):
            bandit.next()
            bandit.saw(Tally(1.0, 1.0, 1.0, 1.0))


def _record(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["records"][0].update(changes)


def _first(of: str, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["records"][0][of][0].update(changes)


def _twice(of: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["records"][0][of].append(document["records"][0][of][0])


def _many_arms(document: dict[str, Any]) -> None:
    tallies = document["records"][0]["tallies"]
    tallies += [{**tallies[0], "drafter": f"eagle3/{n}"} for n in range(256)]


WRONG = (float("nan"), float("inf"), True, "1", None, 10**400)
OFF_ARM, DRAFT_ARM = {"drafter": "off", "k": None}, {"drafter": "draft", "k": 4}


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(type="kolm.method-records.v4"),
        lambda d: d.update(more=1),
        lambda d: d.pop("base_cid"),
        lambda d: d.update(base_cid=None),
        lambda d: d.update(records={}),
        lambda d: d["records"].append(d["records"][0]),
        lambda d: d["records"].append("x"),
        _record(more=1), _record(adapter_cid=3), _record(adapter_cid="\ud800"), _record(sampled=1),
        _record(resembles="poetry"), _record(resembles=["code"]), lambda d: d["records"][0].pop("resembles"),
        _record(tallies={}), _record(compared=None), _record(tallies=["x"]), _record(compared=[3]),
        _record(studied=-1.0), _record(studied="3"),
        _twice("tallies"), _twice("compared"), lambda d: d["records"][0]["tallies"][0].pop("cost"),
        _first("tallies", more=1), _first("tallies", drafter=None), _first("tallies", drafter="\ud800"),
        *(_first("tallies", k=wrong) for wrong in (0, True, 2.0, 1025)),
        *(_first("tallies", **{name: wrong}) for name in TALLIED for wrong in (-1.0, *WRONG)),
        _first("tallies", passes=0.0), _first("tallies", cost=0),
        *(_first("compared", **{name: wrong}) for name in COMPARED for wrong in WRONG),
        _first("compared", weight=0.0), _first("compared", weight=201.0), _first("compared", total=60.0),
        _first("compared", squares=300.0), _first("compared", other={"drafter": "off", "k": 3}), _many_arms,
        _first("compared", squares=-1.0), _first("compared", weight=-1.0),
        _first("compared", one=OFF_ARM), _first("compared", other=DRAFT_ARM), _first("compared", one="draft"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_whole(damage: Callable[[dict[str, Any]], object]) -> None:
    document = some()
    damage(document)
    with pytest.raises(ValueError, match=r"expected|twice"):
        from_document(document, BASE)


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_earlier_version_kept_is_named_as_that(version: int) -> None:
    with pytest.raises(ValueError, match=rf"written by an earlier version as kolm\.method-records\.v{version}"):
        from_document({"type": f"kolm.method-records.v{version}", "base_cid": BASE, "records": []}, BASE)


@pytest.mark.parametrize("document", [None, [], 3, "x", {}])
def test_what_is_no_document_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_document(document, BASE)


def auto() -> AutoDrafter:
    return AutoDrafter({}, CHEAP_ROWS, 64)


async def test_a_drafter_goes_on_with_what_the_one_before_it_had_learned(tmp_path: Path) -> None:
    path, first, second = tmp_path / "state" / "auto.json", auto(), auto()
    await RecordFile(path, BASE, first).keep()
    assert not path.exists()  # nothing was learned
    first.restore(from_document(some(), BASE))
    await RecordFile(path, BASE, first).keep()
    RecordFile(path, BASE, second).load()
    found = {kind: Learned(record.tallies, record.compared, record.studied) for kind, record in second.records.items()}
    assert found == from_document(some(), BASE)
    third = auto()
    RecordFile(path, OTHER, third).load()
    assert third.records == {}


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff", b"x" * 2_000_000, b"null"])
def test_a_file_that_is_not_right_is_named_and_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    path, drafter = tmp_path / "auto.json", auto()
    path.write_bytes(data)
    RecordFile(path, BASE, drafter).load()
    assert drafter.records == {}
    assert str(path) in caplog.text


async def test_where_nothing_can_be_kept_serving_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    drafter = auto()
    drafter.restore(from_document(some(), BASE))
    await RecordFile(tmp_path / "file" / "auto.json", BASE, drafter).keep()
    assert "cannot keep what auto has learned" in caplog.text
