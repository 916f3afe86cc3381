"""Costs of an append and of a proof in logs of several sizes, which take turns. Medians over the rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.ledger.load import streaming, unary
from benchmarks.ledger.locations import LedgerLocations
from benchmarks.ledger.proofs import prove
from benchmarks.ledger.service import LedgerLocation, fill, running

_CLIENTS = 64
_WARM_UP = 200
_SMALL = 10_000
"""Up to here a log is made anew for each round, or the rounds before would make it another size."""


def grow(locations: LedgerLocations, sizes: Sequence[int], appends: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each size. Large logs are filled before the first round and grow by the rounds' few percent."""
    large = {size: locations.kept(f"log-{size}") for size in sizes if size > _SMALL}
    filled = {size: fill(location, size) for size, location in large.items()}
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for number in range(rounds):
        for size in sizes:
            location = large.get(size) or locations.location(f"log-{size}-{number}")
            found[size].append(_one(location, size, appends))
    rows = [_row(size, found[size]) | {"fill_seconds": round(filled.get(size, 0.0), 1)} for size in sizes]
    return [row | {"over_the_first": _ratios(row, rows[0])} for row in rows]


def _one(location: LedgerLocation, size: int, appends: int) -> dict[str, Any]:
    fill(location, size)
    with running(location) as service:
        unary(location, service, _CLIENTS, _WARM_UP)
        return {
            **unary(location, service, _CLIENTS, appends),
            "streaming": streaming(location, service, 2 * appends),
            "proof": prove(location, service, size),
        }


def _row(size: int, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians; of proofs the slowest of all rounds too."""
    row = {"entries": size, "rounds": len(found)} | _medians(found)
    row["streaming"] = _medians([each["streaming"] for each in found])
    row["proof"] = _medians([each["proof"] for each in found])
    row["proof"]["greatest_ms"] = max(each["proof"]["greatest_ms"] for each in found)
    return row


def _medians(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    numbers = [name for name, value in found[0].items() if isinstance(value, int | float)]
    return {name: _rounded(median(each[name] for each in found)) for name in numbers}


def _rounded(number: float) -> float:
    return round(number) if number >= 100 else round(number, 4)


def _ratios(row: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    """The cost of an append, by the clock and in the server's processor time, over what it does in the smallest log."""
    return {
        "unary": round(first["appends_per_second"] / row["appends_per_second"], 3),
        "streaming": round(first["streaming"]["appends_per_second"] / row["streaming"]["appends_per_second"], 3),
        "server": round(row["server_ms_per_append"] / first["server_ms_per_append"], 3),
        "server_streaming": round(
            row["streaming"]["server_ms_per_append"] / first["streaming"]["server_ms_per_append"], 3
        ),
    }
