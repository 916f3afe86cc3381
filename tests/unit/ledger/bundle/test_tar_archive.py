import gzip
import io
import tarfile
from pathlib import Path

import pytest

from ledger.bundle import layout
from ledger.bundle.folder import archive, open_bundle, unpack
from ledger.bundle.layout import BundleFile
from ledger.errors import FormatError, LedgerError
from tests.vectors.make_bundles import write_folder

FILES = (
    BundleFile("bundle.json", b"{}"),
    BundleFile("checkpoint", b"note"),
    BundleFile("entries/000000000000.jsonl", b"x" * 1000 + b"\n"),
    BundleFile("heads/" + "0" * 64 + ".json", b""),
)


def packed(*members: tuple[str, bytes, bytes], size: int | None = None) -> bytes:
    """A tar with members (name, type, data), as an attacker would make one."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def unpacked(data: bytes, folder: Path) -> dict[str, bytes]:
    (folder / "archive").write_bytes(data)
    target = folder / "unpacked"
    target.mkdir()
    unpack(folder / "archive", target)
    return read(target)


def read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_and_archive_hold_the_same_files(tmp_path: Path) -> None:
    expected = {file.path: file.data for file in FILES}
    write_folder(FILES, tmp_path / "folder")
    assert read(tmp_path / "folder") == expected
    data = b"".join(archive(FILES))
    assert data == b"".join(archive(FILES))
    assert unpacked(data, tmp_path) == expected


def test_archives_that_other_tools_make_are_read(tmp_path: Path) -> None:
    write_folder(FILES, tmp_path / "folder")
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", format=form) as tar:
            tar.add(tmp_path / "folder", arcname=".")
        place = tmp_path / str(number)
        place.mkdir()
        assert unpacked(out.getvalue(), place) == {file.path: file.data for file in FILES}


def test_a_large_bundle_comes_in_pieces() -> None:
    import secrets

    files = [BundleFile(f"entries/{number:012d}.jsonl", secrets.token_bytes(700_000)) for number in range(4)]
    pieces = list(archive(files))
    assert [len(piece) for piece in pieces[:-1]] == [2**20, 2**20]
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        assert tar.getnames() == [file.path for file in files]


@pytest.mark.parametrize(
    "members",
    [
        [("../checkpoint", tarfile.REGTYPE, b"x")],
        [("/checkpoint", tarfile.REGTYPE, b"x")],
        [("entries/../checkpoint", tarfile.REGTYPE, b"x")],
        [("checkpoint", tarfile.SYMTYPE, b"")],
        [("checkpoint", tarfile.LNKTYPE, b"")],
        [("checkpoint", tarfile.FIFOTYPE, b"")],
        [("checkpoint", tarfile.CHRTYPE, b"")],
        [("anything", tarfile.REGTYPE, b"x")],
        [("checkpoint", tarfile.REGTYPE, b"x"), ("checkpoint", tarfile.REGTYPE, b"y")],
        [("checkpoint", tarfile.REGTYPE, b"x" * (128 * 1024 + 1))],
        [("x", tarfile.XHDTYPE, b"x" * (64 * 1024 + 1))],
        [("entries", tarfile.SYMTYPE, b""), ("entries/000000000000.jsonl", tarfile.REGTYPE, b"x")],
    ],
)
def test_an_archive_with_anything_else_in_it_is_refused(
    members: list[tuple[str, bytes, bytes]], tmp_path: Path
) -> None:
    with pytest.raises(FormatError):
        unpacked(packed(*members), tmp_path)
    assert set(read(tmp_path)) <= {"archive", "unpacked/checkpoint"}


def test_what_no_archive_is_is_refused(tmp_path: Path) -> None:
    whole = b"".join(archive(FILES))
    tar = gzip.decompress(whole)
    without_end = tar[: tar.rindex(b"heads/") + 512]
    bad = [b"", b"\x1f\x8b", whole[:40], without_end, tar[:600], b"\xff" * 2048, whole[:30] + b"\0" * 40]
    for number, data in enumerate([*bad, tar[:100] + b"\xff" + tar[101:]]):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(LedgerError):
            unpacked(data, place)


def test_a_small_archive_does_not_fill_the_disk(tmp_path: Path) -> None:
    swollen = [BundleFile(f"content/{number:012}.jsonl", bytes(48 * 2**20)) for number in range(4)]
    bomb = tmp_path / "bomb"
    bomb.write_bytes(b"".join(archive(swollen)))
    assert bomb.stat().st_size < 2**20
    (tmp_path / "unpacked").mkdir()
    with pytest.raises(FormatError):
        unpack(bomb, tmp_path / "unpacked")
    assert sum(map(len, read(tmp_path / "unpacked").values())) < 128 * 2**20
    with pytest.raises(FormatError), open_bundle(bomb):
        pass


def test_files_and_headers_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [BundleFile(f"heads/{number:064x}.json", b"") for number in range(20)]
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "plain").write_bytes(b"".join(archive(many)))
    monkeypatch.setattr(layout, "MAX_TOTAL_BYTES", 20 * (4096 + 512) + 512)
    unpack(tmp_path / "plain", tmp_path / "unpacked")
    monkeypatch.setattr(layout, "MAX_TOTAL_BYTES", 20 * (4096 + 512) + 511)
    (tmp_path / "again").mkdir()
    with pytest.raises(FormatError):
        unpack(tmp_path / "plain", tmp_path / "again")


def test_a_bundle_that_its_own_reader_asked_for_may_swell(tmp_path: Path) -> None:
    swollen = [BundleFile(f"content/{number:012}.jsonl", bytes(40 * 2**20)) for number in range(2)]
    (tmp_path / "archive").write_bytes(b"".join(archive(swollen)))
    (tmp_path / "unpacked").mkdir()
    unpack(tmp_path / "archive", tmp_path / "unpacked", bounded_by_its_size=False)
    assert len(read(tmp_path / "unpacked")) == 2


def test_headers_without_files_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.bundle.folder.MAX_FILES", 10)
    folder = tarfile.TarInfo("entries")
    folder.type = tarfile.DIRTYPE
    (tmp_path / "b.tar").write_bytes(folder.tobuf(tarfile.USTAR_FORMAT) * 31)
    (tmp_path / "out").mkdir()
    with pytest.raises(FormatError):
        unpack(tmp_path / "b.tar", tmp_path / "out")
