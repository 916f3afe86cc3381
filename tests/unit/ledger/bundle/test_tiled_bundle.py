"""A log that is verified in its tiles, by one process and by several: the verdict of its bundle."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest

from ledger.audit.processes import Processes
from ledger.bundle.file_checks import CheckedFile, FileCheck
from ledger.bundle.layout import MAX_FILES, split_lines
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.tiles import TiledBundle, TileFolder, entry_bundle, export_tiles, read_entry_bundle
from ledger.bundle.verification import verify_bundle
from ledger.durable_file import remove_drafts
from ledger.errors import FormatError, NotFound, StoreError
from ledger.keys.envelope import Envelope
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, receipt
from tests.unit.ledger.bundle.test_verification import failed
from tests.unit.ledger.monitor.listed_log import ListedLog

TRUST = Trust(TRUSTED)
SIZE = 1600  # six full entry bundles and a partial one: more than are checked before other processes are started


@cache
def log() -> ListedLog:
    made = ListedLog()
    made.append(*map(receipt, range(SIZE)))
    return made


def in_tiles(folder: Path, size: int = SIZE) -> Path:
    TileFolder(folder).write(export_tiles(log().entries[:size], log().checkpoint(size)))
    return folder


def judged(folder: Path, workers: int = 1) -> BundleReport:
    return verify_bundle(TiledBundle.at(TileFolder(folder)), TRUST, Processes(workers).map if workers > 1 else map)


def spoiled(folder: Path, number: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = folder / f"tile/entries/{number:03d}"
    path.write_bytes(entry_bundle(change(read_entry_bundle(path.read_bytes()))))


def test_a_log_in_tiles_is_verified_as_a_whole(tmp_path: Path) -> None:
    folder = in_tiles(tmp_path / "tiles", 700)
    report = judged(folder)
    assert (report.ok, dict(report.kinds)) == (True, {"receipt": 700}), report.problem
    report = judged(in_tiles(folder))
    assert (report.ok, dict(report.kinds)) == (True, {"receipt": SIZE}), report.problem
    (folder / "tile/entries/001").unlink()
    assert failed(judged(folder)) == 1


def test_a_crash_leaves_a_draft_where_the_next_export_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        killed.setattr("os.replace", Mock(side_effect=KeyboardInterrupt))
        killed.setattr(Path, "unlink", Mock())
        in_tiles(tmp_path)
    assert len(remove_drafts(tmp_path)) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, pytest.param(5, marks=pytest.mark.long)])
def test_a_changed_entry_is_found_by_one_process_and_by_two_in_the_same_words(number: int, tmp_path: Path) -> None:
    folder = in_tiles(tmp_path / "tiles")
    assert judged(folder) == judged(folder, workers=2)
    other = Entry(number * 256 + 7, Envelope.from_bytes(Entry.from_bytes(log().entries[9]).envelope.to_bytes()))
    for change in (
        lambda entries: [*entries[:7], other.to_bytes(), *entries[8:]],
        lambda entries: [*entries[:7], entries[7].replace(b'"sig":"', b'"sig":"AAAA'), *entries[8:]],
        lambda entries: [*entries[:7], entries[8], entries[7], *entries[9:]],
        lambda entries: entries[:-1],
    ):
        spoiled(in_tiles(folder), number, change)
        alone = judged(folder)
        assert not alone.ok
        assert alone == judged(folder, workers=2)


def test_tiles_that_change_between_two_reads_do_not_hold(tmp_path: Path) -> None:
    folder = in_tiles(tmp_path / "tiles", 700)

    def changing(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        spoiled(folder, 1, lambda entries: [*entries[:3], entries[4], *entries[4:]])
        return map(check, jobs)

    assert not verify_bundle(TiledBundle.at(TileFolder(folder)), TRUST, changing).ok
    grown = TiledBundle.at(TileFolder(in_tiles(tmp_path / "grown", 700)))
    in_tiles(tmp_path / "grown")  # the log goes on, and partial tiles go, while an older checkpoint is verified
    assert verify_bundle(grown, TRUST).ok


def test_a_claim_of_too_many_entries_is_refused_before_any_is_read(tmp_path: Path) -> None:
    note = sign_checkpoint(Checkpoint(ORIGIN, 256 * MAX_FILES + 1, b"\1" * 32), KEYS["log"])
    (tmp_path / "checkpoint").write_bytes(note)
    with pytest.raises(FormatError):
        TiledBundle.at(TileFolder(tmp_path))
    with pytest.raises(NotFound):
        TiledBundle.at(TileFolder(tmp_path / "nowhere"))


def test_an_entry_with_a_line_break_is_not_two(tmp_path: Path) -> None:
    folder = in_tiles(tmp_path / "tiles", 300)
    spoiled(folder, 0, lambda entries: [entries[0] + b"\n" + entries[1], *entries[1:]])
    bundle = TiledBundle.at(TileFolder(folder))
    with pytest.raises(FormatError):
        bundle.read("entries/000000000000.jsonl")
    assert len(split_lines(bundle.read("entries/000000000256.jsonl"), "")) == 44
    assert not verify_bundle(bundle, TRUST).ok


def test_a_disk_that_fails_says_nothing_of_the_log(tmp_path: Path) -> None:
    class Failing(TileFolder):
        def read(self, path: str, most: int) -> bytes:
            if path.startswith("tile/entries/001"):
                raise StoreError("input/output error")
            return super().read(path, most)

    bundle = TiledBundle.at(TileFolder(in_tiles(tmp_path / "tiles", 300)))
    with pytest.raises(StoreError):
        verify_bundle(replace(bundle, files=Failing(tmp_path / "tiles")), TRUST)
