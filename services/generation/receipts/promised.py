"""Promised receipts: what goes to the log if this process dies before the answer is whole.

    <folder>/<receipt id>.append     kolm.ledger.v1.AppendEntryRequest: the receipt as it is without an output
A file is here before its promise leaves the server, and until the outbox or the ledger has the receipt of the real
output. So a promise that somebody holds is kept even by a process that is killed. The files hold prompts: the folder is
0700, the files are 0600.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.generation.durable_file import remove_drafts, sync_folder, write_durably
from services.generation.receipts.issuer import SignedReceipt

_SUFFIX = ".append"


class PromisedReceipts:
    """Blocks: call it on a thread. Calls about different receipts may overlap."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the folder cannot be made."""
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)

    def keep(self, unfinished: Sequence[SignedReceipt]) -> None:
        """Returns once all are on disk. Raises OSError, and then keeps none of them."""
        try:
            for receipt in unfinished:
                write_durably(self.path(receipt.receipt_id), receipt.append.SerializeToString())
        except OSError:
            for receipt in unfinished:
                self.remove(receipt.receipt_id)
            raise

    def remove(self, receipt_id: str) -> None:
        """The real one is safe. If a crash undoes this, the ledger refuses the other: it has the receipt_id already."""
        self.path(receipt_id).unlink(missing_ok=True)

    def path(self, receipt_id: str) -> Path:
        return self._folder / f"{receipt_id}{_SUFFIX}"

    def left(self) -> dict[str, Path]:
        """Files by receipt_id that an earlier process left, the oldest first. Call it once, before the rest."""
        remove_drafts(self._folder)
        return {path.stem: path for path in sorted(self._folder.glob(f"*{_SUFFIX}"))}
