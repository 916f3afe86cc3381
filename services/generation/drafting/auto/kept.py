"""What has been learned, as a document that outlives the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.belief import Evidence
from services.generation.drafting.auto.resemblance import RESEMBLANCES
from services.generation.drafting.auto.tally import FARTHEST, Kind, Record, Tally

TYPE = "kolm.method-records.v3"
_BEFORE = ("kolm.method-records.v1", "kolm.method-records.v2")  # told no kinds of text apart; compared no arms
_DEEPEST = 1024  # tokens of a draft
K = TypeVar("K")
V = TypeVar("V")
_MOST = 1e12  # of any of the sums; they fade, so that none comes near it
_MOST_COMPARED = 200.0  # comparisons of a pair: with a fade of 1 % for each there are never more than half as many
_LEAST_COMPARED = 1e-3
_MOST_ARMS = 256


class Learned(NamedTuple):
    """Of one kind of request."""

    tallies: dict[Arm, Tally]
    compared: dict[tuple[Arm, Arm], Evidence]
    studied: float


def to_document(base_cid: str, records: Mapping[Kind, Record]) -> dict[str, Any]:
    """Of the records on one base. From any thread, while the engine goes on."""
    return {"type": TYPE, "base_cid": base_cid, "records": [_record(*each) for each in list(records.items())]}


def _record(kind: Kind, record: Record) -> dict[str, Any]:
    return {
        "adapter_cid": kind.adapter, "sampled": kind.sampled, "resembles": kind.resembles,
        "tallies": [{**arm._asdict(), **seen._asdict()} for arm, seen in record.tallies.items()],
        "compared": [
            {"one": one._asdict(), "other": other._asdict(), **evidence._asdict()}
            for (one, other), evidence in record.compared.items()
        ],
        "studied": record.studied,
    }  # fmt: skip


def from_document(document: Any, base_cid: str) -> dict[Kind, Learned]:
    """What `to_document` was given, for the same base; nothing for another one. Raises ValueError for anything else."""
    if isinstance(document, dict) and document.get("type") in _BEFORE:
        raise ValueError(f"written by an earlier version as {document['type']}")
    _members("the document", document, ("type", "base_cid", "records"))
    if document["type"] != TYPE or not isinstance(document["base_cid"], str):
        raise ValueError(f"expected a {TYPE} document with base_cid, a string")
    learned: dict[Kind, Learned] = {}
    for place, line in _lines("records", document["records"]):
        kind = _kind(place, line)
        if kind in learned:
            raise ValueError(f"{place}: this kind is there twice")
        tallies = dict(_once(place, [_tally(*each) for each in _lines(f"{place}.tallies", line["tallies"])]))
        compared = dict(_once(place, [_comparison(*each) for each in _lines(f"{place}.compared", line["compared"])]))
        if len({*tallies, *(arm for pair in compared for arm in pair)}) > _MOST_ARMS:
            raise ValueError(f"{place}: expected at most {_MOST_ARMS} arms")
        learned[kind] = Learned(tallies, compared, _sum(f"{place}.studied", line["studied"]))
    return learned if document["base_cid"] == base_cid else {}


def _kind(place: str, line: Any) -> Kind:
    _members(place, line, ("adapter_cid", "sampled", "resembles", "tallies", "compared", "studied"))
    adapter, sampled, resembles = line["adapter_cid"], line["sampled"], line["resembles"]
    if not isinstance(adapter, str | None) or not isinstance(sampled, bool) or not (adapter or "").isascii():
        raise ValueError(f"{place}: expected adapter_cid, a string in ASCII or null, and sampled, a boolean")
    if resembles not in RESEMBLANCES:
        raise ValueError(f"{place}.resembles: expected one of {', '.join(RESEMBLANCES)}")
    return Kind(adapter, sampled, resembles)


def _tally(place: str, line: Any) -> tuple[Arm, Tally]:
    _members(place, line, (*Arm._fields, *Tally._fields))
    seen = Tally(*(_sum(f"{place}.{name}", line[name]) for name in Tally._fields))
    if seen.passes == 0.0 or seen.cost == 0.0:
        raise ValueError(f"{place}: expected passes that cost something")
    return _arm(place, {name: line[name] for name in Arm._fields}), seen


def _comparison(place: str, line: Any) -> tuple[tuple[Arm, Arm], Evidence]:
    _members(place, line, ("one", "other", *Evidence._fields))
    one, other = _arm(f"{place}.one", line["one"]), _arm(f"{place}.other", line["other"])
    if one in (other, OFF):
        raise ValueError(f"{place}.one: expected an arm other than off and than the one that it is compared with")
    weight, squares = (_sum(f"{place}.{name}", line[name]) for name in ("weight", "squares"))
    total, farthest = _number(f"{place}.total", line["total"]), (1.0 + 1e-9) * FARTHEST
    if not _LEAST_COMPARED <= weight <= _MOST_COMPARED:
        raise ValueError(f"{place}.weight: expected a number from {_LEAST_COMPARED:g} to {_MOST_COMPARED:g}")
    if abs(total) > weight * farthest or squares > weight * farthest**2:
        raise ValueError(f"{place}: expected comparisons that say up to a thousand times as fast")
    return (one, other), Evidence(weight, total, squares)


def _arm(place: str, line: Any) -> Arm:
    _members(place, line, Arm._fields)
    drafter, k = line["drafter"], line["k"]
    if not isinstance(drafter, str) or not drafter.isascii():
        raise ValueError(f"{place}.drafter: expected a name in ASCII")
    if drafter == OFF.drafter and k is not None:
        raise ValueError(f"{place}.k: expected null for off, which drafts nothing")
    if k is not None and (type(k) is not int or not 1 <= k <= _DEEPEST):
        raise ValueError(f"{place}.k: expected null or a whole number from 1 to {_DEEPEST}, found {k!r}")
    return Arm(drafter, k)


def _sum(place: str, value: Any) -> float:
    if _number(place, value) < 0.0:
        raise ValueError(f"{place}: expected a number from 0, found {value!r}")
    return float(value)


def _number(place: str, value: Any) -> float:
    if type(value) not in (int, float) or not -_MOST <= value <= _MOST:
        raise ValueError(f"{place}: expected a number up to {_MOST:g}, found {value!r}")
    return float(value)


def _members(place: str, line: Any, names: Sequence[str]) -> None:
    if not isinstance(line, dict) or line.keys() != set(names):
        raise ValueError(f"{place}: expected an object with {', '.join(names)}")


def _lines(place: str, lines: Any) -> list[tuple[str, Any]]:
    if not isinstance(lines, list):
        raise ValueError(f"{place}: expected a list")
    return [(f"{place}[{number}]", line) for number, line in enumerate(lines)]


def _once(place: str, found: list[tuple[K, V]]) -> list[tuple[K, V]]:
    if len(dict(found)) < len(found):
        raise ValueError(f"{place}: something is there twice")
    return found
