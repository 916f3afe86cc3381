"""Signed files that a stranger has changed: never believed as something else, and nothing but the ledger's errors.

Each file is changed hundreds of times, at any depth (`tests.mutations`). A changed file that still verifies has the
original's content: a signature line more or less, an optional file left out.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.bundle.conversation import Transcript
from ledger.bundle.folder import BundleFolder
from ledger.bundle.layout import BundleFile
from ledger.bundle.proven import prove_entry, prove_statement
from ledger.bundle.receipt_file import ReceiptFile
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.promise import (
    PromiseAnswer,
    open_answer,
    open_promise,
    promise_digest,
    sign_answer,
    sign_promise,
)
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import digest
from ledger.errors import LedgerError
from ledger.monitor.judgement import Limits
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from ledger.statements.scitt import Place, cose_receipt, transparent_statement
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import inclusion_proof
from ledger.tree.tile import TileHashes
from ledger.tree.tlog_proof import TlogProof
from tests.mutations import mutants, replace
from tests.unit.client.test_answer_check import CONTENT, TEXT
from tests.unit.client.test_answer_check import signed as answered
from tests.unit.ledger.builders import (
    KEYS,
    START,
    TRUSTED,
    at,
    policy,
    promise_of,
    publication,
    receipt,
    receipt_id,
    verdict,
)
from tests.unit.ledger.bundle.test_transcript import TALK, Reader
from tests.unit.ledger.monitor.listed_log import ListedLog
from tests.vectors.make_bundles import POLICY, bundles, checkpoint, log_of, write_folder

COUNT = 200
GOOD = bundles()["good"].files
LOG = log_of({2: answered(receipt_id=receipt_id(0)), 3: answered(receipt_id=receipt_id(1), request_id="request-1")})
SIZE = len(LOG.all)
TRUST = Trust(TRUSTED, POLICY, reader=Reader(), now=START + timedelta(days=1))
LOGS_ALONE = Trust(TRUSTED)  # a COSE Receipt has no cosignatures


@dataclass(frozen=True)
class Signed:
    """A file, another of its kind, and the result of verifying a file, which raises LedgerError for an invalid one."""

    data: bytes
    other: bytes
    believed: Callable[[bytes], Any]


def proof(index: int) -> TlogProof:
    return TlogProof(index, inclusion_proof(index, SIZE, TileHashes(LOG)), checkpoint(LOG, SIZE), LOG.all[index])


def believed_proof(data: bytes) -> Any:
    read = TlogProof.from_bytes(data)
    place = prove_entry(read, TRUST)
    return place.index, place.kind, place.witnessed.checkpoint, read.extra


def receipt_file(index: int) -> bytes:
    envelope = Entry.from_bytes(LOG.all[index]).envelope
    return ReceiptFile(envelope, CONTENT, "a prompt", TEXT, proof(index)).to_bytes()


def believed_file(data: bytes) -> Any:
    file = ReceiptFile.from_bytes(data)
    assert file.proof is not None, "kolm verify asks for one"
    return file.receipt(), file.content, file.sent, file.text, believed_proof(file.proof.to_bytes())


def cose_statement(index: int) -> bytes:
    tree = open_checkpoint(checkpoint(LOG, SIZE), [KEYS["log"].public])
    place = Place(LOG.all[index], index, inclusion_proof(index, SIZE, TileHashes(LOG)), tree)
    about = receipt_at(index).receipt_id
    return transparent_statement(place.entry, about, KEYS["receipts"], [cose_receipt(place, about, KEYS["log"])])


def receipt_at(index: int) -> Receipt:
    document = read_document(Entry.from_bytes(LOG.all[index]).envelope)
    assert isinstance(document, Receipt)
    return document


def promise(index: int) -> bytes:
    return sign_promise(promise_of(receipt_at(index), due=at(600)), KEYS["receipts"]).to_bytes()


def promise_answer(index: int) -> bytes:
    about = promise_digest(promise(index))
    return sign_answer(PromiseAnswer(about, SIZE, digest(b"root"), (index,), at(700)), KEYS["log"]).to_bytes()


FILES = {
    "proof": Signed(proof(2).to_bytes(), proof(3).to_bytes(), believed_proof),
    "receipt file": Signed(receipt_file(2), receipt_file(3), believed_file),
    "SCITT": Signed(cose_statement(2), cose_statement(3), lambda data: prove_statement(data, LOGS_ALONE)),
    "promise": Signed(promise(2), promise(3), lambda data: open_promise(data, TRUSTED)),
    "answer": Signed(promise_answer(2), promise_answer(3), lambda data: open_answer(data, promise(2), TRUSTED)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_says_what_it_said_or_nothing(name: str) -> None:
    file = FILES[name]
    honest = [file.believed(file.data)]
    with suppress(LedgerError):
        honest.append(file.believed(file.other))
    for changed in mutants(file.data, file.other, COUNT):
        with suppress(LedgerError):
            assert file.believed(changed) in honest, changed


def judged(files: dict[str, bytes], folder: Path) -> Any:
    """The verified contents of a bundle; None if it is invalid. A manifest may claim a part of the entries, whose owed
    replays are unknown.
    """
    write_folder((BundleFile(path, data) for path, data in files.items()), folder)
    report = verify_bundle(BundleFolder(folder), TRUST)
    if not report.ok:
        return None
    if report.checks[13].passed:
        check_told(Transcript.from_bytes(files["transcript.json"]))
    return replace(report, checks=(), manifest=None, cosigned={}, freshness=None, completeness=None)


def check_told(transcript: Transcript) -> None:
    """Only turns of the conversation; of an interrupted answer a beginning."""
    turns = {turn.receipt_id: (TALK.messages(place), turn.answer) for place, turn in enumerate(TALK.turns)}
    for place, turn in enumerate(transcript.turns):
        messages, answer = turns[turn.receipt_id]
        assert transcript.messages(place) == messages
        assert turn.answer == answer or (turn.interrupted and answer.startswith(turn.answer))


WHOLE = GOOD | {"transcript.json": TALK.to_bytes()}


@pytest.mark.parametrize("path", [path for path in WHOLE if not path.startswith(("keys/", "policy"))])
def test_a_bundle_with_a_changed_file_says_what_it_said_or_nothing(path: str, tmp_path: Path) -> None:
    honest = judged(WHOLE, tmp_path / "honest")
    assert honest is not None
    other = bundles()["range"].files.get(path, WHOLE[path])
    for number, changed in enumerate(mutants(WHOLE[path], other, COUNT // 4)):
        assert judged(WHOLE | {path: changed}, tmp_path / str(number)) in (honest, None), changed


def test_a_monitor_takes_no_changed_entry_and_no_changed_checkpoint() -> None:
    log = ListedLog()
    log.append(policy(0.0), *map(receipt, range(4)), publication(), verdict(2, 1))
    entries, note = log.entries, log.checkpoint()
    assert followed(entries, note) == len(entries)
    for changed in mutants(note, log.checkpoint(5), COUNT // 5):
        assert followed(entries, changed) in (len(entries), None), changed
    for number, entry in enumerate(entries):
        for changed in mutants(entry, entries[number - 1], COUNT // 25):
            assert followed([*entries[:number], changed, *entries[number + 1 :]], note) is None, changed


def followed(entries: Sequence[bytes], note: bytes) -> int | None:
    """The number of entries that a new monitor follows; None if it reports a fault."""
    log, now = ListedLog(entries), START + timedelta(seconds=500)  # the newest entry's time
    log.overlay = {"checkpoint": note}
    with closing(MonitorMemory(Path(":memory:"))) as memory:
        monitor = Monitor(memory, TRUSTED, Limits())
        monitor.poll(log, now)
        return None if monitor.findings((), now) else monitor.size
