"""Files and folders that a command line names, looked at before anything heavy is imported. All raise UsageError."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile

from services.cli.failures.exits import UsageError
from services.generation.target.model_path import ADAPTER_FOLDER, FolderKind


def expect_files(flag: str, paths: Iterable[Path], expected: str) -> None:
    """Each is a file."""
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise UsageError(f"{flag}: {', '.join(missing)}: no such file; expected {expected}")


def read_text(flag: str, path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {path} is not UTF-8: byte {error.start}") from None


def expect_folder(flag: str, path: Path, kind: FolderKind) -> None:
    """A folder of this kind."""
    try:
        kind.check(path)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def named_adapters(settings: Iterable[str]) -> dict[str, Path]:
    """Folders by name, from settings of the form NAME=DIR."""
    found = {}
    for setting in settings:
        name, _, folder = setting.partition("=")
        if not (name and folder):
            raise UsageError(f"--adapter: expected NAME=DIR of an adapter in peft's layout, got {setting}")
        expect_folder("--adapter", Path(folder), ADAPTER_FOLDER)
        found[name] = Path(folder)
    return found


def expect_writable(flag: str, folder: Path) -> None:
    """A folder, made where missing, in which files can be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        hint = "name another folder, or let its owner make it yours"
        raise UsageError(f"{flag}: cannot write in {folder}: {error.strerror}", hint) from None


def expect_room(flag: str, path: Path) -> Path:
    """The folder of a file that is to be written: an answer must not be lost for want of it."""
    if not path.parent.is_dir():
        raise UsageError(f"{flag}: {path.parent} is not a directory", "make it first, or name a file in another folder")
    return path


def expect_new(flag: str, path: Path) -> None:
    """Nothing is there yet, or an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{flag}: {path}: exists already; choose another folder or remove it")
