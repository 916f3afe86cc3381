"""The imports of `ledger`, and its one way of writing files."""

import ast
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ledger
from ledger.durable_file import create_durably, move_durably, replaced_durably, write_durably

PACKAGE = Path(ledger.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


OPTIONAL = {
    "cose.py": {"cbor2"},
    "pkcs11_signer.py": {"pkcs11"},
}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names | froms}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_the_ledger_may(path: Path) -> None:
    sql = {"sqlalchemy"} if PACKAGE / "sql" in path.parents else set()
    allowed = {"ledger", "cryptography", "msgspec", "nacl", "rfc8785"} | sql
    allowed |= OPTIONAL.get(path.name, set())
    assert imported(path) - allowed <= sys.stdlib_module_names


def test_the_map_names_every_folder() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py") if f"`{path.parent.name}/`" not in text} == set()


ROOT = Path(__file__).parents[3]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to the disk, in order: writes of data and of names."""
    found: list[str] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def synced(descriptor: int) -> None:
        found.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "data")
        fsync(descriptor)

    def named(do: Callable[..., None]) -> Callable[..., None]:
        def done(*where: object) -> None:
            found.append("name")
            do(*where)

        return done

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named(replace))
    monkeypatch.setattr(os, "link", named(link))
    return found


def test_the_data_comes_first_then_the_name_then_the_folder(tmp_path: Path, asked: list[str]) -> None:
    write_durably(tmp_path / "a/b/file", b"one", mode=0o640)
    assert asked == ["folder", "folder", "data", "name", "folder"]  # two new folders in theirs
    assert stat.S_IMODE((tmp_path / "a/b/file").stat().st_mode) == 0o640
    create_durably(tmp_path / "new", b"first")
    assert asked[5:] == ["data", "name", "folder"]
    with pytest.raises(FileExistsError):
        create_durably(tmp_path / "new", b"second")
    assert (tmp_path / "new").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "file", "new"]


def test_what_was_written_elsewhere_is_moved_once_the_disk_has_all_of_it(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "draft/in").mkdir(parents=True)
    (tmp_path / "draft/in/file").write_bytes(b"one")
    move_durably(tmp_path / "draft", tmp_path / "folder")
    assert sorted(asked[:3]) == ["data", "folder", "folder"]
    assert asked[3:] == ["name", "folder"]
    move_durably(tmp_path / "folder/in/file", tmp_path / "file")
    assert asked[5:] == ["data", "name", "folder"]
    assert (tmp_path / "file").read_bytes() == b"one"


def test_a_file_that_could_not_be_written_whole_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"old")
    with suppress(RuntimeError), replaced_durably(tmp_path / "file") as file:
        file.write(b"ne")
        raise RuntimeError
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_no_other_module_asks_the_disk_in_its_own_way() -> None:
    """But the journal of receipts, which appends to a file."""
    asking = {
        str(path.relative_to(ROOT))
        for folder in ("ledger", "services")
        for path in (ROOT / folder).rglob("*.py")
        if "os.fsync" in path.read_text(encoding="utf-8")
    }
    assert asking == {"ledger/durable_file.py", "services/generation/receipts/journal.py"}
