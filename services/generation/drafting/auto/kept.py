"""What has been learned, as a document that outlives the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.resemblance import RESEMBLANCES
from services.generation.drafting.auto.tally import Kind, Record, Tally

TYPE = "kolm.method-records.v2"
_BEFORE = "kolm.method-records.v1"  # without resemblances: one tally for texts of all kinds says little about any
_SUMS = Tally._fields
_DEEPEST = 1024  # tokens of a draft
_MOST = 1e12  # of any of the sums; they fade, so that none comes near it
Tallies = dict[Kind, dict[Arm, Tally]]


def to_document(base_cid: str, records: Mapping[Kind, Record]) -> dict[str, Any]:
    """Of the records on one base. From any thread, while the engine goes on."""
    return {
        "type": TYPE,
        "base_cid": base_cid,
        "records": [
            {
                "adapter_cid": kind.adapter, "sampled": kind.sampled, "resembles": kind.resembles,
                "drafter": arm.drafter, "k": arm.k, **seen._asdict(),
            }
            for kind, record in list(records.items())
            for arm, seen in list(record.tallies.items())
        ],
    }  # fmt: skip


def from_document(document: Any, base_cid: str) -> Tallies:
    """What `to_document` was given, for the same base; nothing for another one. Raises ValueError for anything else."""
    if isinstance(document, dict) and document.get("type") == _BEFORE:
        raise ValueError(f"written by an earlier version as {_BEFORE}, which told no kinds of text apart")
    if not isinstance(document, dict) or document.keys() != {"type", "base_cid", "records"} or document["type"] != TYPE:
        raise ValueError(f"expected a {TYPE} document")
    learned_on, lines = document["base_cid"], document["records"]
    if not isinstance(learned_on, str) or not isinstance(lines, list):
        raise ValueError("expected base_cid, a string, and records, a list")
    tallies: Tallies = {}
    for number, line in enumerate(lines):
        kind, arm, seen = _line(f"records[{number}]", line)
        if arm in tallies.setdefault(kind, {}):
            raise ValueError(f"records[{number}]: {arm} is there twice")
        tallies[kind][arm] = seen
    return tallies if learned_on == base_cid else {}


def _line(place: str, line: Any) -> tuple[Kind, Arm, Tally]:
    if not isinstance(line, dict) or line.keys() != {"adapter_cid", "sampled", "resembles", "drafter", "k", *_SUMS}:
        raise ValueError(f"{place}: expected the tally of an arm")
    adapter, sampled, drafter, k = (line[name] for name in ("adapter_cid", "sampled", "drafter", "k"))
    if not isinstance(adapter, str | None) or not isinstance(sampled, bool) or not isinstance(drafter, str):
        raise ValueError(f"{place}: expected adapter_cid, a string or null, sampled, a boolean, drafter, a string")
    resembles = line["resembles"]
    if resembles not in RESEMBLANCES:
        raise ValueError(f"{place}.resembles: expected one of {', '.join(RESEMBLANCES)}")
    if not (drafter + (adapter or "")).isascii():
        raise ValueError(f"{place}: expected names in ASCII")
    if k is not None and (type(k) is not int or not 1 <= k <= _DEEPEST):
        raise ValueError(f"{place}.k: expected null or a whole number from 1 to {_DEEPEST}, found {k!r}")
    for name in _SUMS:
        if type(line[name]) not in (int, float) or not 0.0 <= line[name] <= _MOST:
            raise ValueError(f"{place}.{name}: expected a number from 0 to {_MOST:g}, found {line[name]!r}")
    seen = Tally(*(float(line[name]) for name in _SUMS))
    if seen.passes == 0.0 or seen.cost == 0.0:
        raise ValueError(f"{place}: expected passes that cost something")
    return Kind(adapter, sampled, resembles), Arm(drafter, k), seen
