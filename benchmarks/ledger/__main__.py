"""`python -m benchmarks.ledger`: durable appends with proof, by number of clients and by size of the log, as JSON and a
plot in benchmarks/results. Client and service share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ledger import plot
from benchmarks.ledger.load import streaming, unary
from benchmarks.ledger.proofs import prove, verify
from benchmarks.ledger.service import House, fill, running
from benchmarks.machine import RESULTS, machine
from tests.postgres import PostgresMissing, running_cluster, url_of

_CLIENTS = (1, 4, 16, 64, 256)
_WARM_UP = 500


def main() -> None:
    arguments = _arguments()
    results: dict[str, Any] = {}
    for store in arguments.only:
        most = arguments.most if store == "sqlite" else min(arguments.most, arguments.most_postgresql)
        with _house(store) as house:
            results[store] = _measure(house, arguments.appends, most)
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "ledger": results}
    (arguments.out / "ledger.json").write_text(json.dumps(document, indent=1) + "\n")
    plot.draw(results, arguments.out / "ledger.png")
    _show(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--appends", type=int, default=5000, help="appends of one measurement (5000)")
    parser.add_argument("--most", type=int, default=1_000_000, help="entries that the log grows to (1000000)")
    parser.add_argument("--most-postgresql", type=int, default=100_000, help="the same on PostgreSQL (100000)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and plot (benchmarks/results)")
    stores = ("sqlite", "postgresql")
    parser.add_argument("--only", nargs="+", choices=stores, default=stores, help="databases to measure (both)")
    return parser.parse_args()


@contextmanager
def _house(store: str) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="kolm-benchmark-") as folder:
        if store == "sqlite":
            yield House(Path(folder))
            return
        try:
            with running_cluster(durable=True) as cluster:
                yield House(Path(folder), url_of(cluster, "postgres"))
        except PostgresMissing as error:
            raise SystemExit(f"{error}; or leave it out: --only sqlite") from None


def _measure(house: House, appends: int, most: int) -> dict[str, Any]:
    """The clients on a log of 10^3 entries, then the growth."""
    fill(house, 1000)
    with running(house) as service:
        unary(house, service, 64, _WARM_UP)
        clients = [unary(house, service, count, max(appends * min(count, 64) // 64, 100)) for count in _CLIENTS]
        stream = streaming(house, service, 2 * appends)
    sizes = [size for size in (10**power for power in range(3, 10)) if size <= most]
    growth = [_at_size(house, size, appends) for size in sizes]
    return {"clients": clients, "streaming": stream, "growth": growth, "verification": verify(house, 20_000)}


def _at_size(house: House, size: int, appends: int) -> dict[str, Any]:
    """One row: filled to `size` (or a little more), what an append and a proof cost."""
    filled = fill(house, size)
    with running(house) as service:
        unary(house, service, 64, _WARM_UP)
        return {
            "entries": size,
            "fill_seconds": round(filled, 1),
            **unary(house, service, 64, appends),
            "streaming": streaming(house, service, appends),
            "proof": prove(house, service, size),
        }


def _show(results: dict[str, Any]) -> None:
    table = Table("store", "entries", "clients", "appends/s", "median ms", "p99 ms", "server ms", "proof ms")
    for store, found in results.items():
        for row in (*found["clients"], found["streaming"], *found["growth"]):
            table.add_row(
                store,
                *(str(row.get(name, "–")) for name in ("entries", "clients", "appends_per_second", "median_ms")),
                *(str(row.get(name, "–")) for name in ("p99_ms", "server_ms_per_append")),
                str(row["proof"]["greatest_ms"]) if "proof" in row else "–",
            )
    Console().print(table)
    for store, found in results.items():
        Console().print(f"{store}: verification of {found['verification']}")


if __name__ == "__main__":
    main()
