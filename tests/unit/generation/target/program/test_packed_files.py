"""Packed weights on disk, and faults of files, disks and processes."""

import errno
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.target import cpu
from services.generation.target.arrays import Int64
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.identity import FileDigests
from services.generation.target.kernels.machine import MACHINES
from services.generation.target.program import packed_files
from services.generation.target.program.matrices import Pack, pack_tensors
from services.generation.target.program.packed_files import PackedFolder
from services.generation.target.program.packing import PackedWeights, Packing
from tests.fakes.tiny_families import FAMILIES, WITH_EXPERTS
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model

SIZE = 40_000  # bytes of a base's weights, about
RNG = np.random.default_rng(0)
TENSORS = [
    StoredTensor.of_values(name, RNG.standard_normal(shape).astype(np.float32))
    for name, shape in (("embedding", (70, 64)), ("gate", (33, 64)), ("up", (33, 64)))
]
ORDER = np.array([*range(32), *range(33, 65), 32, *[-1] * 31, 65, *[-1] * 31])


@pytest.fixture(autouse=True)
def _small_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "LARGE_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> PackedFolder:
    return PackedFolder(1 << 20, tmp_path / "packed", FileDigests(tmp_path / "digests.json"))


def packed_bytes(pack: Pack) -> list[bytes]:
    return [pack(TENSORS[:1], None).panels.tobytes(), pack(TENSORS[1:], ORDER).panels.tobytes()]


PACKED = packed_bytes(pack_tensors)


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "packed weights":
            thread.join()


def start(folder: PackedFolder, base: str = "base") -> list[bytes]:
    """The panels that a process which loads a base computes with."""
    with folder.packing(base, SIZE) as pack:
        found = packed_bytes(pack)
    settle()
    return found


def files(folder: PackedFolder) -> list[Path]:
    return sorted(path for path in folder.path.glob("*/*") if path.name != ".lock")


def packings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tensors that are packed from now on."""
    names: list[str] = []

    def counted(tensors: Sequence[StoredTensor], order: Int64 | None = None) -> Packing:
        names.extend(tensor.name for tensor in tensors)
        return honest(tensors, order)

    honest = Packing.of
    monkeypatch.setattr(Packing, "of", counted)
    return names


def test_a_later_start_packs_nothing(folder: PackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packings(monkeypatch)
    assert start(folder) == PACKED
    assert packed == ["embedding", "gate", "up"]
    assert start(folder) == PACKED
    assert len(packed) == 3
    (file,) = files(folder)
    assert file.name.endswith(hashlib.sha256(file.read_bytes()).hexdigest())
    assert (file.stat().st_mode & 0o777, folder.path.stat().st_mode & 0o777) == (0o600, 0o700)


def test_weights_in_a_folder_that_cannot_be_written_are_used(
    folder: PackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    start(folder)
    packed = packings(monkeypatch)
    monkeypatch.setattr(os, "utime", refused)
    assert start(folder) == PACKED
    assert packed == []


@pytest.mark.parametrize(
    "source", ["families.py", "family.py", "config/config_document.py", "config/gguf_config.py", "program/packing.py"]
)
def test_a_change_of_the_code_that_orders_rows_packs_again(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = packed_files._version()
    changed = shutil.copytree(packed_files._PACKAGE, tmp_path / "target", ignore=shutil.ignore_patterns("__pycache__"))
    with (changed / source).open("a") as file:
        file.write("#")
    with monkeypatch.context() as other:
        other.setattr(packed_files, "_PACKAGE", changed)
        assert packed_files._version.__wrapped__() != before
    assert packed_files._version.__wrapped__() == before
    monkeypatch.setattr(packed_files, "version", lambda _: "0.0.0")  # of gguf, which widens tensors
    assert packed_files._version.__wrapped__() != before


def renamed(path: Path, content: bytes) -> None:
    """Put other content in place of a file, under the digest of that."""
    path.with_name(f"{path.name.partition('-')[0]}-{hashlib.sha256(content).hexdigest()}").write_bytes(content)
    path.unlink()


DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "cut short": lambda path, content: path.write_bytes(content[:-100]),
    "a changed byte": lambda path, content: path.write_bytes(content[:5000] + b"?" + content[5001:]),
    "empty": lambda path, content: path.write_bytes(b""),
    "empty under its digest": lambda path, content: renamed(path, b""),
    "cut short under its digest": lambda path, content: renamed(path, content[4096:]),
    "no table under its digest": lambda path, content: renamed(path, b"[1]" + (3).to_bytes(8, "little")),
    "a table beyond it": lambda path, content: renamed(path, b"[1]" + (2**63).to_bytes(8, "little")),
    "a folder": lambda path, content: (path.unlink(), path.mkdir()),
    "unreadable": lambda path, content: (path.unlink(), path.symlink_to(path.parent / "missing")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_packed_again(
    folder: PackedFolder, damage: Callable[[Path, bytes], object], caplog: pytest.LogCaptureFixture
) -> None:
    start(folder)
    (file,) = files(folder)
    damage(file, file.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert start(folder) == PACKED
    assert caplog.records
    caplog.clear()
    assert start(folder) == PACKED


def test_bases_and_machines_have_files_of_their_own(folder: PackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    start(folder)
    start(folder, "another")
    machine = next(each for each in MACHINES.values() if each != packed_files.this_machine())
    monkeypatch.setattr(packed_files, "this_machine", lambda: machine)
    start(folder)
    assert len({file.parent for file in files(folder)}) == 3


def test_a_file_of_another_base_is_not_used(folder: PackedFolder, caplog: pytest.LogCaptureFixture) -> None:
    start(folder)
    (own,) = files(folder)
    start(folder, "another")
    (other,) = set(files(folder)) - {own}
    own.unlink()
    other.rename(own.parent / other.name)
    with caplog.at_level(logging.WARNING):
        assert start(folder) == PACKED
    assert "another" in caplog.text


def test_a_new_version_replaces_the_file(folder: PackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    start(folder)
    before = files(folder)
    monkeypatch.setattr(packed_files, "_version", lambda: "0123456789abcdef")
    assert start(folder) == PACKED
    assert len(files(folder)) == 1
    assert files(folder) != before


def test_the_least_recently_used_base_is_deleted(folder: PackedFolder) -> None:
    folders = list[Path]()
    for base in ("first", "second"):
        start(folder, base)
        folders += {file.parent for file in files(folder)} - set(folders)
    size = files(folder)[0].stat().st_size
    for age, each in enumerate(folders):
        os.utime(each, (1_000 + age, 1_000 + age))
    start(folder, "first")
    start(PackedFolder(SIZE + size, folder.path, folder.digests), "third")
    left = {file.parent for file in files(folder)}
    assert (folders[0] in left, folders[1] in left, len(left)) == (True, False, 2)


def make_mixed_gguf(folder: Path, hidden: int) -> Path:
    """A model of which one of three modules, one of two, and a whole one are in another storage."""
    other = dict[str, Any]()
    make_tiny_gguf(folder / "other.gguf", storage="q8_0", hidden=hidden, change_tensors=other.update)
    some = {f"blk.0.{name}.weight": other[f"blk.0.{name}.weight"] for name in ("attn_v", "ffn_up", "ffn_down")}
    return make_tiny_gguf(
        folder / "mixed.gguf", storage="q4_1", hidden=hidden, change_tensors=lambda each: each.update(some)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda path: make_tiny_gguf(path / "iq4_nl.gguf", storage="iq4_nl", tied=True),
        lambda path: make_mixed_gguf(path, 256),
        lambda path: make_mixed_gguf(path, 96),
        *(
            lambda path, family=family: make_tiny_model(path, **(FAMILIES | WITH_EXPERTS)[family])
            for family in ("gemma4", "phi3", "qwen3_moe", "qwen3_5", "lfm2")
        ),
    ],
    ids=["iq4_nl", "mixed", "widened", "gemma4", "phi3", "qwen3_moe", "qwen3_5", "lfm2"],
)
def test_room_is_made_for_weights_as_they_are_packed(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, packed = list[int](), list[int]()

    def counted(tensors: Sequence[StoredTensor], order: Int64 | None) -> PackedWeights:
        found = pack_tensors(tensors, order)
        packed.append(found.panels.nbytes)
        return found

    @contextmanager
    def packing(self: PackedFolder, base_cid: str, size: int) -> Iterator[Pack]:
        sizes.append(size)
        yield counted

    monkeypatch.setattr(PackedFolder, "packing", packing)
    load_target(make(tmp_path), cache_tokens=64)
    assert sizes == [sum(packed)]


def test_zero_and_a_limit_below_the_weights_keep_nothing(folder: PackedFolder) -> None:
    for most in (0, SIZE - 1):
        assert start(PackedFolder(most, folder.path, folder.digests)) == PACKED
    assert not folder.path.exists()
    assert start(PackedFolder(SIZE, folder.path, folder.digests)) == PACKED  # less than they turn out to take
    assert not files(folder)


def test_a_disk_without_room_is_logged_once(
    folder: PackedFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_files, "_SPARE_BYTES", 1 << 60)
    with caplog.at_level(logging.WARNING):
        assert start(folder) == PACKED
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not files(folder)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_disk_that_fills_up_meanwhile_costs_the_file_alone(
    folder: PackedFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    honest, calls = packed_files._NewFile._write, iter(range(1, 100))

    def full(self: packed_files._NewFile, data: memoryview | bytes, position: int) -> None:
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(self, data, position)

    monkeypatch.setattr(packed_files._NewFile, "_write", full)
    with caplog.at_level(logging.WARNING):
        assert start(folder) == PACKED
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not files(folder)


def test_a_folder_that_cannot_be_made_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert start(PackedFolder(1 << 20, tmp_path / "file" / "below")) == PACKED
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_draft_of_a_killed_process_is_removed_and_logged(
    folder: PackedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    start(folder)
    (file,) = files(folder)
    (draft := file.with_name(".draft-abc")).write_bytes(file.read_bytes()[:5000])
    file.unlink()
    with caplog.at_level(logging.WARNING):
        assert start(folder) == PACKED
    assert [record.args for record in caplog.records] == [(draft,)]
    assert files(folder) == [file]
    assert not draft.exists()


def test_weights_that_cannot_be_loaded_leave_nothing_behind(folder: PackedFolder) -> None:
    infinite = StoredTensor.of_values("gate", np.full((33, 64), np.inf, np.float32))
    with pytest.raises(WeightsInvalid), folder.packing("base", SIZE) as pack:
        assert (pack(TENSORS[:1], None), pack([infinite], None)) == ()
    assert not files(folder)
    assert start(folder) == PACKED


def test_weights_that_change_while_they_are_packed_are_not_kept(
    folder: PackedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, honest = make_tiny_model(tmp_path / "model"), cpu._load

    def written(*given: Any) -> Any:
        with (made / "model.safetensors").open("r+b") as file:  # in place, as `rsync --inplace` writes
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
        return honest(*given)

    monkeypatch.setattr(cpu, "_load", written)
    with pytest.raises(WeightsInvalid, match="safetensors"):
        load_target(made, packed=folder)
    settle()
    assert not files(folder)


def test_of_two_that_start_together_one_packs(folder: PackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, found = packings(monkeypatch), list[list[bytes]]()
    first_is_packing, second_asks = threading.Event(), threading.Event()
    honest = packed_files.one_at_a_time

    def watched(path: Path) -> object:
        if first_is_packing.is_set():
            second_asks.set()
        return honest(path)

    monkeypatch.setattr(packed_files, "one_at_a_time", watched)
    second = threading.Thread(target=lambda: found.append(start(folder)))
    with folder.packing("base", SIZE) as pack:
        first_is_packing.set()
        second.start()
        assert second_asks.wait(60)
        found.append(packed_bytes(pack))
    second.join()
    assert found == [PACKED, PACKED]
    assert packed == ["embedding", "gate", "up"]


def test_a_model_computes_the_same_bits_from_mapped_weights(
    folder: PackedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_tiny_model(tmp_path / "model")

    def logits(packed: PackedFolder | None) -> bytes:
        target: CpuTarget = load_target(made, packed=packed)
        settle()
        return logits_of(target, [len(TOKENS)]).tobytes()

    plain = logits(None)
    assert logits(folder) == plain
    monkeypatch.setattr(Packing, "of", lambda *_: pytest.fail("packed again"))
    assert logits(folder) == plain
