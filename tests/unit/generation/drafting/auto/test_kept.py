"""What has been learned outlives a process, and a file that is not right never gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.kept import Tallies, from_document, to_document
from services.generation.drafting.auto.tally import Kind, Record, Tally
from services.generation.record_file import RecordFile
from tests.fakes.engine_runs import CHEAP_ROWS

BASE, OTHER = "cidv1:sha256:" + "1" * 64, "cidv1:sha256:" + "2" * 64
SUMS = list(Tally._fields)

sums = st.floats(1e-6, 1e9)
tallies = st.builds(lambda values: Tally(*values), st.lists(sums, min_size=len(SUMS), max_size=len(SUMS)))
arms = st.sampled_from([Arm("eagle3/one", 4), Arm("eagle3/one", 8), Arm("lookahead"), Arm("draft", 2), OFF])
kinds = st.sampled_from([Kind(None, False), Kind(None, True, "code"), Kind(None, True), Kind(OTHER, True, "rag")])
learned = st.dictionaries(kinds, st.dictionaries(arms, tallies, min_size=1), max_size=3)


def records(tallies: Tallies) -> dict[Kind, Record]:
    return {kind: Record(0.998, seen) for kind, seen in tallies.items()}


def some() -> dict[str, Any]:
    tallies: Tallies = {
        Kind(OTHER, True, "structured"): {
            Arm("draft", 4): Tally(*(2.0 for _ in SUMS)),
            OFF: Tally(*(1.0 for _ in SUMS)),
        }
    }
    document: dict[str, Any] = json.loads(json.dumps(to_document(BASE, records(tallies))))
    return document


@given(learned)
def test_what_is_kept_comes_back(tallies: Tallies) -> None:
    document = json.loads(json.dumps(to_document(BASE, records(tallies))))
    assert from_document(document, BASE) == tallies
    assert from_document(document, OTHER) == {}


def _first(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["records"][0].update(changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(type="kolm.method-records.v3"),
        lambda d: d.update(more=1),
        lambda d: d.pop("base_cid"),
        lambda d: d.update(base_cid=None),
        lambda d: d.update(records={}),
        lambda d: d["records"].append(d["records"][0]),
        lambda d: d["records"].append("x"),
        lambda d: d["records"][0].pop("cost"),
        _first(more=1), _first(adapter_cid=3), _first(sampled=1), _first(drafter=None), _first(drafter="\ud800"),
        _first(resembles="poetry"), _first(resembles=["code"]), lambda d: d["records"][0].pop("resembles"),
        _first(k=0), _first(k=True), _first(k=2.0), _first(k=1025),
        *(_first(**{name: wrong}) for name in SUMS for wrong in (-1.0, float("nan"), float("inf"), True, "1", None)),
        _first(passes=0.0), _first(cost=0), _first(tokens=10**400),
    ],
)  # fmt: skip
def test_anything_else_is_refused_whole(damage: Callable[[dict[str, Any]], object]) -> None:
    document = some()
    damage(document)
    with pytest.raises(ValueError, match=r"expected|twice"):
        from_document(document, BASE)


def test_what_an_earlier_version_kept_is_named_as_that() -> None:
    with pytest.raises(ValueError, match=r"written by an earlier version as kolm\.method-records\.v1"):
        from_document({"type": "kolm.method-records.v1", "base_cid": BASE, "records": []}, BASE)


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
    assert {kind: record.tallies for kind, record in second.records.items()} == from_document(some(), BASE)
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
