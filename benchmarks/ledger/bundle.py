"""`python -m benchmarks.ledger.bundle`: how long `kolm verify` takes for a bundle of 10^5 receipts, as a process of its
own; JSON in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.ledger.receipts import signed_receipts
from benchmarks.machine import RESULTS, machine
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.tar_archive import archive
from ledger.documents.content import Content
from ledger.encoding.digest import ZERO_DIGEST
from ledger.encoding.timestamp import timestamp
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry, entry_hash
from ledger.tree.merkle import leaf_hash, tree_root
from ledger.tree.tile import TileEdge, TileHashes

_BAR_SECONDS = 60.0


class Entries:
    """A BundleSource that holds nothing but receipts, in memory."""

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._entries = entries
        _, tiles = TileEdge().append(map(leaf_hash, entries))
        self._tiles = {(tile.level, tile.number): tile.hashes for tile in tiles}

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        return self._entries[start : start + limit]

    def entry(self, index: int) -> bytes:
        return self._entries[index]

    def entries_of(self, kinds: Iterable[str]) -> Sequence[tuple[int, bytes]]:
        return ()

    def content(self, receipt_index: int) -> Content | None:
        return None

    def tile(self, level: int, number: int) -> bytes:
        return self._tiles[level, number]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger.bundle", description=__doc__)
    parser.add_argument("--receipts", type=int, default=100_000, help="receipts in the bundle (100000)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON (benchmarks/results)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kolm-benchmark-") as folder:
        found = measure(Path(folder), arguments.receipts)
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "bundle": found}
    (arguments.out / "bundle.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def measure(folder: Path, receipts: int) -> dict[str, Any]:
    """Export a log of so many receipts, then run `kolm verify` on it as a process of its own."""
    log, signer = SigningKey.generate("log"), SigningKey.generate("receipts")
    for key in (log, signer):
        key.publish(folder / "trusted")
    source = Entries(_chained(islice(signed_receipts(signer), receipts)))
    head = Checkpoint("benchmark/ledger", receipts, tree_root(receipts, TileHashes(source)))
    wanted = Export(sign_checkpoint(head, log), 0, receipts, timestamp(datetime.now(UTC)))
    started = time.perf_counter()
    path = folder / "bundle.tar.gz"
    with path.open("wb") as file:
        file.writelines(archive(export_bundle(source, wanted)))
    exported = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "verify",
        str(path),
        "--trusted",
        str(folder / "trusted"),
        "--json",
    ]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert report["ok"], report["problem"]
    return {
        "receipts": receipts,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "export_seconds": round(exported - started, 1),
        "verify_seconds": round(time.perf_counter() - exported, 1),
        "bar_seconds": _BAR_SECONDS,
    }


def _chained(receipts: Iterable[tuple[Any, bytes, Content]]) -> list[bytes]:
    entries: list[bytes] = []
    previous = ZERO_DIGEST
    for index, (_, envelope, _) in enumerate(receipts):
        entries.append(Entry(index, previous, Envelope.from_bytes(envelope)).to_bytes())
        previous = entry_hash(entries[-1])
    return entries


if __name__ == "__main__":
    main()
