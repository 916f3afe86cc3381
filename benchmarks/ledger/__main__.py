"""`python -m benchmarks.ledger`: durable appends with proof, by number of clients and by size of the log, as JSON in
benchmarks/results. Client and service share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ledger.load import measure_streaming, measure_unary, prove, verify
from benchmarks.ledger.service import STORES, LedgerLocation, LedgerLocations, fill, opened, running
from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, Subject, known_figures

_CLIENT_COUNTS = (1, 4, 16, 64, 256)
_WARM_UP = 500

_CLIENTS = 64
_SHORT_WARM_UP = 200

_SMALL = 10_000
"""The largest log that is made again for each round; earlier rounds would change its size."""

Row = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that folders, services and the cluster go, too
    results: dict[str, Any] = dict(known_figures("ledger", arguments.out) or {})
    for store in arguments.only:
        most = arguments.most if store != "postgresql" else min(arguments.most, arguments.most_postgresql)
        with opened(store, arguments.keep) as locations:
            results[store] = _measure(locations, arguments.appends, most, arguments.rounds)
    Measurement.now("ledger", results, Subject()).write(arguments.out)
    print(json.dumps({store: results[store] for store in arguments.only}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--appends", type=int, default=2000, help="appends of one measurement (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns that the logs of several sizes take (3)")
    parser.add_argument("--most", type=int, default=1_000_000, help="entries of the largest log (1000000)")
    parser.add_argument(
        "--most-postgresql", type=int, default=100_000, help="entries of the largest log on PostgreSQL (100000)"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder where filled SQLite logs are, or are left, to be used again (none: removed)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON (benchmarks/results)")
    parser.add_argument("--only", nargs="+", choices=STORES, default=STORES, help="stores to measure (all)")
    return parser.parse_args()


def _measure(locations: LedgerLocations, appends: int, most: int, rounds: int) -> dict[str, Any]:
    """The clients on a log of 10^3 entries, then the growth."""
    location = locations.location("log-clients")
    fill(location, 1000)
    with running(location) as service:
        measure_unary(location, service, 64, _WARM_UP)
        clients = [
            measure_unary(location, service, count, max(appends * min(count, 64) // 64, 100))
            for count in _CLIENT_COUNTS
        ]
        measure_streaming(location, service, _WARM_UP)
        stream = measure_streaming(location, service, 3 * appends)
    sizes = [size for size in (10**power for power in range(3, 10)) if size <= most]
    growth = grow(locations, sizes, appends, rounds)
    return {"clients": clients, "streaming": stream, "growth": growth, "verification": verify(location, 20_000)}


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
        measure_unary(location, service, _CLIENTS, _SHORT_WARM_UP)
        measure_streaming(location, service, _SHORT_WARM_UP)
        return {
            **measure_unary(location, service, _CLIENTS, appends),
            "streaming": measure_streaming(location, service, 2 * appends),
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


if __name__ == "__main__":
    main()
