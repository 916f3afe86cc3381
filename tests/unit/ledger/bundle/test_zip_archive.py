from __future__ import annotations

import io
import stat
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.bundle import zip_archive
from ledger.bundle.folder import opened_bundle
from ledger.bundle.layout import BundleFile
from ledger.bundle.zip_archive import unzip, write_zip
from ledger.errors import FormatError, LedgerError
from tests.examples import examples

FILES = (
    BundleFile("bundle.json", b"{}"),
    BundleFile("checkpoint", b"note"),
    BundleFile("entries/000000000000.jsonl", b"x" * 1000 + b"\n"),
)


def zipped(*members: tuple[str, bytes], mode: int = stat.S_IFREG, comment: bytes = b"") -> bytes:
    """A zip as an attacker would make one."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        warnings.simplefilter("ignore")  # of second files of a name
        for name, data in members:
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(member, data)
        made.comment = comment
    return out.getvalue()


def whole() -> bytes:
    out = io.BytesIO()
    write_zip(FILES, out)
    return out.getvalue()


def unzipped(data: bytes, folder: Path) -> dict[str, bytes]:
    (folder / "archive").write_bytes(data)
    target = folder / "unpacked"
    target.mkdir()
    unzip(folder / "archive", target)
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def test_a_zip_comes_back_as_it_was_and_is_the_same_each_time(tmp_path: Path) -> None:
    assert unzipped(whole(), tmp_path) == {file.path: file.data for file in FILES}
    assert whole() == whole()


def test_a_bundle_is_opened_from_a_zip(tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_bytes(whole())
    with opened_bundle(tmp_path / "b.zip") as bundle:
        assert bundle.read("checkpoint") == b"note"
        assert tuple(bundle.files()) == FILES


@pytest.mark.parametrize(
    "data",
    [
        zipped(("../checkpoint", b"x")),
        zipped(("/checkpoint", b"x")),
        zipped(("anything", b"x")),
        zipped(("checkpoint", b"x"), ("checkpoint", b"y")),
        zipped(("checkpoint", bytes(128 * 1024 + 1))),
        zipped(("checkpoint", b"/etc/passwd"), mode=stat.S_IFLNK),
        zipped(("checkpoint", b"x"), comment=b"hello"),
        whole()[:-1],
        b"PK\x03\x04",
        b"",
    ],
    ids=["climbing", "absolute", "other", "twice", "bomb", "link", "comment", "cut", "head only", "empty"],
)
def test_anything_else_is_refused_and_writes_nothing_outside(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        unzipped(data, tmp_path)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {"archive", "unpacked/checkpoint"}


def test_a_zip_does_not_fill_the_disk_or_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as small:
        small.setattr(zip_archive, "MAX_TOTAL_BYTES", 1000)
        with pytest.raises(FormatError, match="do too much"):
            unzipped(whole(), tmp_path)
    monkeypatch.setattr(zip_archive, "MAX_FILES", 2)
    with pytest.raises(FormatError, match="more headers"):
        unzip(tmp_path / "archive", tmp_path)


@settings(max_examples=examples(150))
@given(st.integers(0, len(whole()) - 1), st.integers(1, 255))
def test_only_the_one_error_family_comes_out_of_a_damaged_zip(at: int, change: int) -> None:
    data = bytearray(whole())
    data[at] ^= change
    with tempfile.TemporaryDirectory() as folder:
        try:
            unzipped(bytes(data), Path(folder))
        except LedgerError:
            return
