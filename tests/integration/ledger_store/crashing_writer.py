"""A process that appends receipts until it is killed, by itself at a given step or by its parent at any time.

    python -m tests.integration.ledger_store.crashing_writer DATABASE GUARD FIRST [STEP]

DATABASE is an SQLite file or the URL of a PostgreSQL database, GUARD an SQLite file.

Writes one line for each acknowledged append: receipt number, index, checkpoint (base64). With STEP (one of
`faulty_store.FAULTS`) it kills itself with SIGKILL when, after three acknowledged appends, a write
reaches that step.
"""

import base64
import os
import signal
import sys
import threading
from pathlib import Path
from typing import cast

from ledger.log.continuity import Guard
from ledger.log.sequencer import Sequencer
from ledger.log.store import EntryStore
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt
from tests.unit.ledger.log.faulty_store import FaultyGuard, FaultyStore

CALLERS = 4
MOST_APPENDS = 5_000


def open_store(database: str, keys: Path) -> SqlEntryStore:
    return SqlEntryStore.open(database if "://" in database else Path(database), keys)


def main() -> None:
    database, guard_file, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    step = sys.argv[4] if len(sys.argv) > 4 else None
    armed = threading.Event()

    def strike(reached: str) -> None:
        if reached == step and armed.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    store = cast(EntryStore, FaultyStore(open_store(database, guard_file.with_name("keys.db")), strike))
    guard = cast(Guard, FaultyGuard(SqlGuard.open(guard_file), strike))
    sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=guard)

    def append(numbers: range) -> None:
        for number in numbers:
            done = sequencer.append(signed_receipt(number), content(number)).result()
            checkpoint = base64.b64encode(done.checkpoint).decode()
            sys.stdout.write(f"{number} {done.index} {checkpoint}\n")
            sys.stdout.flush()

    append(range(first, first + 3))
    armed.set()
    callers = [
        threading.Thread(target=append, args=(range(first + 3 + caller, first + MOST_APPENDS, CALLERS),))
        for caller in range(CALLERS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


if __name__ == "__main__":
    main()
