"""`python -m benchmarks.ledger.bundle`: the time and memory of `kolm verify`, in a process of its own, for a bundle of
10^5 receipts; JSON in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.ledger.service import LedgerLocation, fill
from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, Subject
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.folder import archive
from ledger.encoding.text_forms import timestamp
from ledger.sql.store import SqlEntryStore


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger.bundle", description=__doc__)
    parser.add_argument("--receipts", type=int, default=100_000, help="receipts in the bundle (100000)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON (benchmarks/results)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kolm-benchmark-") as folder:
        found = measure(LedgerLocation(Path(folder)), arguments.receipts)
    Measurement.now("bundle", found, Subject()).write(arguments.out)
    print(json.dumps(found, indent=1))


def measure(location: LedgerLocation, receipts: int) -> dict[str, Any]:
    """Export a log of `receipts` receipts without content, then run `kolm verify` on the bundle."""
    fill(location, receipts)
    path = location.folder / "bundle.tar.gz"
    started = time.perf_counter()
    with closing(SqlEntryStore.open_for_reading(location.database)) as store, path.open("wb") as file:
        note = store.latest_checkpoint()
        assert note is not None
        file.writelines(archive(export_bundle(store, Export(note, 0, receipts, timestamp(datetime.now(UTC))))))
    exported = time.perf_counter()
    verify = ("verify", str(path), "--trusted", str(location.folder / "trusted"), "--json")
    before = _processor_seconds()
    done = subprocess.run([sys.executable, "-m", "services.cli", *verify], check=True, capture_output=True)
    report = json.loads(done.stdout)
    assert report["ok"], report["problem"]
    return {
        "receipts": receipts,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "export_seconds": round(exported - started, 1),
        "verify_seconds": round(time.perf_counter() - exported, 1),
        "processor_us_per_receipt": round(1e6 * (_processor_seconds() - before) / receipts, 1),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000),
    }


def _processor_seconds() -> float:
    """CPU seconds of this process's ended children and of their ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
