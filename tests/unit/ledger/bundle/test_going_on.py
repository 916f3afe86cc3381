"""A verifier that continues from a state: the same verdict as from the first entry, or a refusal."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.audit.log_verification import verify_log
from ledger.audit.seen import SeenOnDisk
from ledger.bundle.file_checks import CheckedFile, FileCheck
from ledger.bundle.folder import BundleFolder
from ledger.bundle.layout import BundleFile
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.promise import sign_promise
from ledger.documents.signed_document import sign_document
from ledger.errors import StoreError
from ledger.keys.trusted_keys import FixedThreshold, TrustedKeys
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, START, TRUSTED, at, promise_of, publication, receipt, verdict
from tests.unit.ledger.bundle import test_verification
from tests.unit.ledger.bundle.test_verification import failed
from tests.vectors.make_bundles import DOCUMENTS, SUCCESSOR, ListedLog, exported, log_of, write_folder

SIZE = len(DOCUMENTS)
TRUST = replace(test_verification.TRUST, as_of=START + timedelta(seconds=100))  # before any verdict is overdue


def written(files: dict[str, bytes], folder: Path) -> BundleFolder:
    if not folder.exists():
        write_folder((BundleFile(path, data) for path, data in files.items()), folder)
    return BundleFolder(folder)


def plain(log: ListedLog, **changes: Any) -> dict[str, bytes]:
    return exported(log, **({"earlier": (), "sizes": (), "with_content": False} | changes))


def judged(files: dict[str, bytes], folder: Path, state: Path | None = None, trust: Trust = TRUST) -> BundleReport:
    with closing(SeenOnDisk(state)) as seen:
        return verify_bundle(written(files, folder), trust, state=seen)


def verified(size: int, tmp_path: Path) -> Path:
    """A state that has verified the first entries of the log."""
    state = tmp_path / f"state-{size}"
    report = judged(plain(log_of(drop=SIZE - size)), tmp_path / f"first-{size}", state)
    assert (report.ok, report.verified_before) == (True, 0), report.problem
    return state


@pytest.mark.parametrize("part", ["entries/", "content/"])
def test_a_disk_that_fails_is_no_fault_of_the_bundle(part: str, tmp_path: Path) -> None:
    class Failing(BundleFolder):
        def read(self, path: str) -> bytes:
            if path.startswith(part):
                raise StoreError("input/output error")
            return super().read(path)

    written(plain(log_of(), with_content=True), tmp_path / "bundle")
    with pytest.raises(StoreError):
        verify_bundle(Failing(tmp_path / "bundle"), TRUST)


def test_content_beside_no_entries_is_a_malformed_bundle(tmp_path: Path) -> None:
    files = plain(log_of({0: publication()})) | {"content/000000000999.jsonl": b"{}\n"}
    assert failed(judged(files, tmp_path / "bundle")) == 1


def test_no_state_proves_that_a_promise_was_broken(tmp_path: Path) -> None:
    state = verified(9, tmp_path)
    kept = promise_of(receipt(0), due=at(10))
    trust = replace(TRUST, promises=(sign_promise(kept, KEYS["receipts"]).to_bytes(),))
    report = judged(plain(log_of()), tmp_path / "grown", state, trust)
    assert (failed(report), [each.state for each in report.promises]) == (16, ["OVERDUE"])


def test_every_temporary_database_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SeenOnDisk] = []
    opened, close = SeenOnDisk.__init__, SeenOnDisk.close

    def noted(seen: SeenOnDisk, path: Path | None = None) -> None:
        made.append(seen)
        opened(seen, path)

    def forgotten(seen: SeenOnDisk) -> None:
        made.remove(seen)
        close(seen)

    state = verified(5, tmp_path)
    monkeypatch.setattr(SeenOnDisk, "__init__", noted)
    monkeypatch.setattr(SeenOnDisk, "close", forgotten)
    chosen = plain(log_of(), start=0, end=0, indexes=(3,), sizes=(5,))
    assert judged(chosen, tmp_path / "chosen", state).ok  # of entries before the state's end
    assert verify_log(log_of().all, None, TRUSTED).ok
    assert made == []


@pytest.mark.parametrize("size", range(4, SIZE + 1))
def test_what_is_said_of_a_log_is_the_same_from_any_entry_on(size: int, tmp_path: Path) -> None:
    afresh = replace(judged(plain(log_of()), tmp_path / "whole"), checks=(), manifest=None, verified_before=0)
    for start in {0, size // 2, size}:
        state = verified(size, tmp_path / str(start))
        report = judged(plain(log_of(), start=start), tmp_path / f"from-{start}", state)
        assert (report.ok, report.verified_before) == (True, size), report.problem
        assert replace(report, checks=(), manifest=None, verified_before=0) == afresh
        again = judged(plain(log_of(), start=SIZE), tmp_path / "again", state)
        assert (again.ok, again.verified_before, again.kinds) == (True, SIZE, afresh.kinds)


def test_entries_that_were_verified_are_not_opened_again(tmp_path: Path) -> None:
    opened: list[int] = []

    def noted(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        for checked in map(check, jobs):
            opened.extend(entry.index for entry in checked.entries if entry.document is not None)
            yield checked

    with closing(SeenOnDisk(verified(9, tmp_path))) as seen:
        assert verify_bundle(written(plain(log_of()), tmp_path / "whole"), TRUST, noted, seen).ok
    assert opened == list(range(9, SIZE))


@pytest.mark.parametrize("start", [0, 5, 9])
def test_another_history_is_refused_and_the_state_stays(start: int, tmp_path: Path) -> None:
    state = verified(9, tmp_path)
    kept = state.read_bytes()
    rewritten = log_of({3: receipt(1, tenant="another")})
    report = judged(plain(rewritten, start=start), tmp_path / "rewritten", state)
    assert failed(report) == 4
    assert failed(judged(plain(log_of(drop=SIZE - 8)), tmp_path / "rolled-back", state)) == 4
    assert state.read_bytes() == kept
    assert judged(plain(log_of(), start=start), tmp_path / "honest", state).ok


def test_entries_that_are_left_out_in_between_are_missed(tmp_path: Path) -> None:
    state = verified(5, tmp_path)
    assert failed(judged(plain(log_of(), start=6), tmp_path / "gap", state)) == 4
    chosen = judged(plain(log_of(), start=0, end=0, indexes=(3,), sizes=(5,)), tmp_path / "chosen", state)
    assert (chosen.ok, chosen.verified_before) == (True, 0)  # it extends what was verified, and brings nothing to keep
    files = plain(log_of(), start=5)
    lines = files["entries/000000000000.jsonl"].splitlines(keepends=True)
    short = files | {"entries/000000000000.jsonl": b"".join(lines[:-1])}
    assert failed(judged(short, tmp_path / "short", state)) == 5
    assert judged(files, tmp_path / "rest", state).ok


@pytest.mark.parametrize(
    ("index", "document", "check"),
    [
        (12, receipt(0, halt_epoch=1), 8),  # it has the id of an entry that was verified before
        (12, verdict(3, 0), 8),  # names another receipt than entry 3
        (11, receipt(3, halt_epoch=1), 7),  # by a key that was replaced before
    ],
)
def test_rules_reach_back_to_what_was_verified(index: int, document: Any, check: int, tmp_path: Path) -> None:
    key = KEYS["auditor"] if check == 8 and not hasattr(document, "tenant") else SUCCESSOR if check == 8 else None
    envelope = document if key is None else sign_document(document, key)
    log = log_of({index: envelope})
    assert failed(judged(plain(log), tmp_path / "whole")) == check
    assert failed(judged(plain(log, start=10), tmp_path / "rest", verified(10, tmp_path))) == check


def replaced_by_a_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"junk" * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        replaced_by_a_database,
        lambda path: changed(path, "PRAGMA user_version=99"),
        lambda path: changed(path, "UPDATE summary SET document = '{}'"),
        lambda path: changed(path, "UPDATE summary SET document = '[1'"),
        lambda path: changed(path, "UPDATE summary SET document = replace(document, 'halts', 'holts')"),
        lambda path: changed(path, "UPDATE documents SET document = 'x'"),
        lambda path: changed(path, "DROP TABLE receipts"),
    ],
)
def test_a_state_that_is_damaged_is_refused_and_left_as_it_is(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    state = verified(SIZE, tmp_path)
    damage(state)
    kept = state.read_bytes()
    with pytest.raises(StoreError):
        judged(plain(log_of()), tmp_path / "whole", state)
    assert state.read_bytes() == kept


def test_a_state_is_for_one_log_and_for_keys_that_are_still_trusted(tmp_path: Path) -> None:
    state = verified(9, tmp_path)
    more = replace(
        TRUST, keys=TrustedKeys({**TRUSTED.by_role, "publisher": (*TRUSTED.keys("publisher"), SUCCESSOR.public)})
    )
    assert judged(plain(log_of()), tmp_path / "more", state, more).ok
    fewer = replace(
        TRUST, keys=TrustedKeys({role: keys for role, keys in TRUSTED.by_role.items() if role != "operator"})
    )
    stricter = replace(TRUST, keys=replace(TRUSTED, threshold=FixedThreshold(((0, 2),))))
    for trust in (fewer, stricter, TRUST):
        with pytest.raises(StoreError):
            judged(plain(log_of()), tmp_path / "whole", state, trust)
    state = verified(9, tmp_path / "other")
    changed(state, "UPDATE summary SET document = json_set(document, '$.origin', 'another.example/log')")
    with pytest.raises(StoreError, match=r"another\.example"):
        judged(plain(log_of()), tmp_path / "whole", state)


def test_nothing_is_kept_of_a_log_that_does_not_hold_nor_where_the_verifier_dies(tmp_path: Path) -> None:
    state = verified(9, tmp_path)
    kept = state.read_bytes()
    unanswered = replace(TRUST, max_unreplayable=0)
    assert failed(judged(plain(log_of()), tmp_path / "whole", state, unanswered)) == 14

    def dying(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        yield from map(check, jobs)
        raise KeyboardInterrupt

    with closing(SeenOnDisk(state)) as seen, pytest.raises(KeyboardInterrupt):
        verify_bundle(written(plain(log_of()), tmp_path / "whole"), TRUST, dying, seen)
    assert state.read_bytes() == kept
    new = tmp_path / "new"
    assert failed(judged(plain(log_of()), tmp_path / "whole", new, unanswered)) == 14
    assert not new.exists()


def test_one_process_at_a_time_uses_a_state(tmp_path: Path) -> None:
    state = verified(9, tmp_path)
    with closing(SeenOnDisk(state)) as seen:
        with pytest.raises(StoreError):
            SeenOnDisk(state)
        assert json.loads(json.dumps(seen.load()))["fold"]["frontier"]["size"] == 9
