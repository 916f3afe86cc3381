"""An auditor's share of the receipts, and the folder that one process of the auditor holds.

The folder keeps signed draws and verdicts that may not be in the log yet, a count of attempts, the receipts that the
holder leaves to others, and a fold of the log. The log itself has the owed and judged receipts.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ledger.durable_file import write_durably
from services.auditor.audit_error import FolderError


@dataclass(frozen=True, slots=True)
class Share:
    """The share of auditor `part`, from 1, of `of` auditors: the receipts with index % of == part - 1. Only the first
    auditor announces the policy and draws.
    """

    part: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """`2/3` is the second of three. Raises ValueError."""
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        part, of = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= part <= of:
            raise ValueError(f"expected PART/OF such as 2/3, the second of three auditors, got {text!r}")
        return cls(part, of)

    def has(self, index: int) -> bool:
        return index % self.of == self.part - 1

    @property
    def draws(self) -> bool:
        return self.part == 1


class HeldFolder:
    """`with HeldFolder(path) as folder:` holds the folder unless another process does, which `holder` then names.

    Only the holder draws, halts for deviations found earlier, and counts attempts. Raises FolderError.
    """

    def __init__(self, path: Path, max_attempts: int = 5) -> None:
        self.holder: str | None = None
        self._path = path
        self._left, self._fold, self._draw, self._verdicts = (
            path / name for name in ("left.json", "fold.json", "draw.json", "verdicts.jsonl")
        )
        self._max_attempts = max_attempts
        self._lock: int | None = None
        self._attempts: dict[int, int] = {}
        self._written_left = "[]"

    def __enter__(self) -> Self:
        self.try_hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def held(self) -> bool:
        """Whether this process holds the folder."""
        return self._lock is not None

    def try_hold(self) -> bool:
        """Hold the folder unless another process does; the lock ends with its process. Returns whether it is held."""
        if self._lock is not None:
            return True
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path / "auditor.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                self._left.unlink(missing_ok=True)  # of an earlier holder, which may have had another base
            except BlockingIOError:
                self.holder = f"process {os.pread(lock, 64, 0).decode(errors='replace').strip() or 'unknown'}"
                os.close(lock)
                return False
            except OSError:
                os.close(lock)
                raise
        except OSError as error:
            raise FolderError(f"cannot use the auditor's folder {self._path}: {error.strerror}") from error
        self._lock, self.holder, self._attempts = lock, None, self._read_attempts()
        return True

    @property
    def given_up(self) -> frozenset[int]:
        """Receipts whose examination failed, or ended its process, `max_attempts` times."""
        return frozenset(index for index, attempts in self._attempts.items() if attempts >= self._max_attempts)

    def begin(self, index: int) -> None:
        """Count an attempt; `end` removes the count unless the attempt failed."""
        self._count(index, self._attempts.get(index, 0) + 1)

    def end(self, index: int, *, failed: bool) -> None:
        """End the attempt, which counts if it `failed` because of the receipt."""
        if not failed:
            self._count(index, 0)

    def kept_draw(self) -> bytes | None:
        """The signed draw that may not have reached the log."""
        return self._read(self._draw)

    def keep_draw(self, envelope: bytes) -> None:
        """Keep a signed draw before it is sent, so that a ledger cannot obtain another one and choose."""
        self._keep(self._draw, envelope)

    def forget_draw(self) -> None:
        """Delete the kept draw, which is in the log, or void."""
        self._forget(self._draw)

    def kept_verdicts(self) -> tuple[bytes, ...]:
        """The signed verdicts on one receipt that may not all have reached the log."""
        return tuple((self._read(self._verdicts) or b"").splitlines())

    def keep_verdicts(self, envelopes: Sequence[bytes]) -> None:
        """Keep the verdicts on a receipt before the first is sent, if this process holds the folder: once the first is
        in the log, the receipt is no longer owed one.
        """
        if self.held:
            self._keep(self._verdicts, b"\n".join(envelopes))

    def forget_verdicts(self) -> None:
        """Delete the kept verdicts, which are in the log, or void."""
        if self.held:
            self._forget(self._verdicts)

    def kept_fold(self) -> Any:
        """The fold that `keep_fold` wrote, as JSON; None if it is missing or cannot be read."""
        try:
            return json.loads(self._fold.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def keep_fold(self, document: Any) -> None:
        """Keep the fold of the log, if this process holds the folder. If it is lost, the log is folded again."""
        if self.held:
            self._keep(self._fold, json.dumps(document, separators=(",", ":")).encode())

    def keep_left(self, indexes: Sequence[int]) -> None:
        """Write the receipts that this process leaves to others, if it holds the folder."""
        text = json.dumps(sorted(indexes))
        if not self.held or text == self._written_left:
            return
        self._replace(self._left, text)
        self._written_left = text

    def left_by_holder(self) -> frozenset[int]:
        """The receipts that the process which holds the folder leaves to others."""
        try:
            return frozenset(map(int, json.loads(self._left.read_bytes())))
        except (OSError, ValueError, TypeError, RecursionError):
            return frozenset()

    def _read(self, file: Path) -> bytes | None:
        """The bytes of a file; None if it is missing."""
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FolderError(f"cannot read {file}: {error.strerror}") from error

    def _keep(self, file: Path, data: bytes) -> None:
        try:
            write_durably(file, data)
        except OSError as error:
            raise FolderError(f"cannot write {file}: {error.strerror}") from error

    def _forget(self, file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise FolderError(f"cannot delete {file}: {error.strerror}") from error

    def _count(self, index: int, attempts: int) -> None:
        """Set the count of attempts. It has to survive the process, not the machine, so it is not synced to disk."""
        if not self.held:
            return
        self._attempts.pop(index, None)
        if attempts:
            self._attempts[index] = attempts
        counts = {str(one): count for one, count in self._attempts.items()}
        self._replace(self._path / "attempts.json", json.dumps(counts))

    def _replace(self, file: Path, text: str) -> None:
        """Replace a file in one step, without syncing it."""
        draft = file.with_name(f"{file.name}.draft")
        try:
            draft.write_text(text)
            draft.replace(file)
        except OSError as error:
            raise FolderError(f"cannot write {file}: {error.strerror}") from error

    def _read_attempts(self) -> dict[int, int]:
        """The counts of attempts; none if the file cannot be read: every receipt is tried again."""
        try:
            kept = json.loads((self._path / "attempts.json").read_bytes())
            return {int(index): int(count) for index, count in kept.items()}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}
