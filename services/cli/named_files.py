"""Files and folders that a command line names, looked at before anything heavy is imported. All raise UsageError."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from services.cli.exits import UsageError


def expect_model(flag: str, path: Path) -> Path:
    """A model that could be loaded, by its looks."""
    if path.is_file() or (path / "config.json").is_file():
        return path
    hint = "name a transformers directory, a GGUF file or smollm2; `kolm models list` shows which have a name"
    raise UsageError(f"{flag}: no model in {path}" if path.is_dir() else f"{flag}: there is no model {path}", hint)


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


def expect_folder(flag: str, path: Path, holding: str, expected: str) -> None:
    """A folder that holds this file."""
    if not (path / holding).is_file():
        raise UsageError(f"{flag}: {path}: no {holding}; expected {expected}")


def expect_room(flag: str, path: Path) -> Path:
    """The folder of a file that is to be written: an answer must not be lost for want of it."""
    if not path.parent.is_dir():
        raise UsageError(f"{flag}: {path.parent} is not a directory", "make it first, or name a file in another folder")
    return path


def expect_new(flag: str, path: Path) -> None:
    """Nothing is there yet, or an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{flag}: {path}: exists already; choose another folder or remove it")
