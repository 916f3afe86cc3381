"""The results of a batch, a line each as they come. A killed batch leaves what it has, and goes on from there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from uuid import uuid4

from services.cli.failures.exits import Failed, UsageError
from services.cli.jobs.batch.lines import BatchLine, LineInvalid

_PASSING = (408, 429, 499)  # statuses of a server that was busy or away, beside 5xx: such lines are asked again


def answered(line: BatchLine, status: int, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """The result of a line that was sent, whatever the server said."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": None}


def refused(line: BatchLine, error: LineInvalid) -> dict[str, Any]:
    """The result of a line that is no request."""
    said = {"code": error.code, "message": error.message, "param": error.param, "line": line.number}
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": line.custom_id, "response": None, "error": said}


class Results:
    """The file of results, which no other batch writes meanwhile. `done` are the keys of lines with a result."""

    def __init__(self, path: Path) -> None:
        """Goes on with a file that is there: a last line that was not written whole is taken out, and so are those of
        requests that found the server busy or away. Raises UsageError where the file holds anything else, or where
        another batch writes it, Failed where it cannot be written.
        """
        self._path, self.done = path, set[str | int]()
        self._file = _locked(path)
        try:
            self._settle()
        except BaseException:
            self._file.close()
            raise

    def _settle(self) -> None:
        beside = self._path.with_name(self._path.name + ".part")
        kept = beside.open("wb")
        try:
            fcntl.flock(kept, fcntl.LOCK_EX)  # before it takes the place of the file that is locked
            with self._writing():
                for raw, result in self._kept():
                    kept.write(raw)
                    self.done.add(_key(result))
                kept.flush()
            os.replace(beside, self._path)
        except BaseException:
            with suppress(OSError):
                kept.close()
            beside.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = kept

    def _kept(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        with self._path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    return  # killed while writing it
                try:
                    result = json.loads(raw)
                    final = _is_final(result)
                except (ValueError, TypeError, KeyError, RecursionError):
                    message = f"{self._path}: line {number} is no result of a batch; name another file"
                    raise UsageError(message) from None
                if final:
                    yield raw, result

    def add(self, result: dict[str, Any]) -> None:
        """Write one result; it stays if this process is killed. Raises Failed."""
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
        with self._writing():
            self._file.write(text.encode(errors="backslashreplace") + b"\n")  # of lone surrogates, JSON's own escapes
            self._file.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "its results stay; the same command goes on once there is room"
            raise Failed(f"cannot write {self._path}: {error.strerror}", hint) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):  # of a result that could not be written, which `add` has said
            self._file.close()


def _locked(path: Path) -> BinaryIO:
    """The file, made where there is none. The lock ends with the process, however it ends. Raises UsageError."""
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file  # and no file that another batch has replaced since
        except BlockingIOError:
            file.close()
            raise UsageError(f"{path}: another batch writes it; wait for that, or name another file") from None
        except BaseException:
            file.close()
            raise
        file.close()


def _key(result: dict[str, Any]) -> str | int:
    key: str | int = result["error"]["line"] if result["custom_id"] is None else result["custom_id"]
    return key


def _is_final(result: dict[str, Any]) -> bool:
    _key(result)
    response = result["response"]
    if response is None:
        return True
    status = response["status_code"]
    return bool(status < 500 and status not in _PASSING)
