"""Concurrent threads read documents, from the first document on."""

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.documents.signed_document import sign_document
from tests.examples import examples
from tests.unit.ledger.builders import KEYS, receipt

ROOT = Path(__file__).parents[4]

FIRST_READERS = """
import json, sys, threading
from pathlib import Path
from ledger.documents.signed_document import read_document
from ledger.keys.envelope import Envelope

sys.setswitchinterval(1e-5)
together = threading.Barrier(8)
data = Path(sys.argv[1]).read_bytes()
found = []

def read():
    together.wait()
    found.append(READ)

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and all(each == found[0] for each in found)
"""


@pytest.mark.parametrize(
    "read", ["read_document(Envelope.from_bytes(data))", "Envelope.from_document(json.loads(data))"]
)
def test_eight_threads_read_the_first_document_of_a_process_at_once(tmp_path: Path, read: str) -> None:
    # In processes of their own, as the types of documents are resolved once in each: a crash ends one with a signal.
    path = tmp_path / "receipt.json"
    path.write_bytes(sign_document(receipt(), KEYS["receipts"]).to_bytes())
    command = [sys.executable, "-c", FIRST_READERS.replace("READ", read), str(path)]
    waiting = examples(25)
    while waiting:
        some, waiting = min(waiting, 4), max(0, waiting - 4)
        running = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(some)]
        ended = [(process.communicate()[1], process.returncode) for process in running]
        assert ended == [("", 0)] * some
