"""`python -m benchmarks.ledger`: durable appends with proof, by number of clients and by size of the log, as JSON and a
plot in benchmarks/results. Client and service share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ledger import plot
from benchmarks.ledger.growth import grow
from benchmarks.ledger.load import streaming, unary
from benchmarks.ledger.locations import STORES, LedgerLocations, opened
from benchmarks.ledger.proofs import verify
from benchmarks.ledger.service import fill, running
from benchmarks.machine import RESULTS, machine

_CLIENTS = (1, 4, 16, 64, 256)
_WARM_UP = 500


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that folders, services and the cluster go, too
    path = arguments.out / "ledger.json"
    results: dict[str, Any] = json.loads(path.read_text())["ledger"] if path.exists() else {}
    for store in arguments.only:
        most = arguments.most if store == "sqlite" else min(arguments.most, arguments.most_postgresql)
        with opened(store, arguments.keep) as locations:
            results[store] = _measure(locations, arguments.appends, most, arguments.rounds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "ledger": results}, indent=1) + "\n")
    plot.draw(results, arguments.out / "ledger.png")
    _show({store: results[store] for store in arguments.only})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--appends", type=int, default=2000, help="appends of one measurement (2000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns that the logs of several sizes take (3)")
    parser.add_argument("--most", type=int, default=1_000_000, help="entries of the largest log (1000000)")
    parser.add_argument("--most-postgresql", type=int, default=100_000, help="the same on PostgreSQL (100000)")
    parser.add_argument(
        "--keep", type=Path, help="folder where filled SQLite logs are, or are left, to be used again (none: removed)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and plot (benchmarks/results)")
    parser.add_argument("--only", nargs="+", choices=STORES, default=STORES, help="databases to measure (both)")
    return parser.parse_args()


def _measure(locations: LedgerLocations, appends: int, most: int, rounds: int) -> dict[str, Any]:
    """The clients on a log of 10^3 entries, then the growth."""
    location = locations.location("log-clients")
    fill(location, 1000)
    with running(location) as service:
        unary(location, service, 64, _WARM_UP)
        clients = [unary(location, service, count, max(appends * min(count, 64) // 64, 100)) for count in _CLIENTS]
        stream = streaming(location, service, 3 * appends)
    sizes = [size for size in (10**power for power in range(3, 10)) if size <= most]
    growth = grow(locations, sizes, appends, rounds)
    return {"clients": clients, "streaming": stream, "growth": growth, "verification": verify(location, 20_000)}


def _show(results: dict[str, Any]) -> None:
    names = ("entries", "clients", "appends_per_second", "median_ms", "p99_ms", "server_ms_per_append")
    table = Table("store", "entries", "clients", "appends/s", "median ms", "p99 ms", "server ms", "proof p99", "cost")
    for store, found in results.items():
        for row in (*found["clients"], found["streaming"]):
            table.add_row(store, *(str(row.get(name, "–")) for name in names), "–", "–")
        for row in found["growth"]:
            stream = {"entries": row["entries"], **row["streaming"]}
            ratio, proof = row["over_the_first"], str(row["proof"]["p99_ms"])
            table.add_row(store, *(str(row.get(name, "–")) for name in names), proof, str(ratio["unary"]))
            table.add_row(store, *(str(stream.get(name, "–")) for name in names), "–", str(ratio["streaming"]))
    Console().print(table)
    for store, found in results.items():
        Console().print(f"{store}: verification of {found['verification']}")


if __name__ == "__main__":
    main()
