"""The table `contents` of a ledger, with the keys that open its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.errors import FormatError, StoreError
from ledger.log.content_seal import ContentKeys, seal, unseal
from ledger.log.store import Record
from ledger.sql.database import Database
from ledger.sql.rows import blob
from ledger.sql.schema import contents, receipts


class SealedContents:
    """Seals and unseals contents, and destroys the keys of those that are erased.

    A key dies after its erasure is durable: an erasure that fails costs no content. It is condemned before: where a
    crash comes between, `settle` finishes at the next start, or before the next write.
    """

    def __init__(self, database: Database, keys: ContentKeys | None) -> None:
        """Without `keys`, contents can be neither written nor read nor erased."""
        self._database = database
        self._keys = keys
        self._unsettled = keys is not None

    def rows(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """The rows of `contents` that some records add. Raises StoreError."""
        given = [
            (record.index, record.document.receipt_id, record.content)
            for record in records
            if record.content is not None and isinstance(record.document, Receipt)
        ]
        if not given:
            return []
        return [
            {"receipt_index": index, "key_id": key.key_id, "sealed": seal(content, receipt_id, key)}
            for (index, receipt_id, content), key in zip(given, self._required().take(len(given)), strict=True)
        ]

    @contextmanager
    def erasing(self, receipt_indexes: Sequence[int]) -> Iterator[None]:
        """Around the transaction that deletes the rows of these receipts. Raises StoreError."""
        if not receipt_indexes:
            yield
            return
        keys = self._required()
        statement = select(contents.c.key_id, contents.c.receipt_index)
        with self._database.reading() as connection:
            found = connection.execute(statement.where(contents.c.receipt_index.in_(receipt_indexes))).all()
        self._unsettled = True
        keys.condemn({row.key_id: row.receipt_index for row in found})
        yield
        self._database.scrub(contents.name)
        self.settle()

    def settle(self) -> None:
        """Destroy the keys of erasures that were written, spare those of erasures that were not. Raises StoreError."""
        if self._keys is None or not self._unsettled:
            return
        condemned = self._keys.condemned()
        if condemned:
            statement = select(contents.c.key_id).where(contents.c.receipt_index.in_(condemned.values()))
            with self._database.reading() as connection:
                kept = {*connection.execute(statement).scalars()}
            self._keys.settle([key_id for key_id in condemned if key_id not in kept])
        self._unsettled = False

    def content(self, receipt_index: int) -> Content | None:
        """None where there is none, or its key was destroyed. Raises StoreError where it is damaged."""
        statement = select(contents.c.key_id, contents.c.sealed, receipts.c.receipt_id)
        joined = statement.join(receipts, receipts.c.index == contents.c.receipt_index)
        with self._database.reading() as connection:
            row = connection.execute(joined.where(contents.c.receipt_index == receipt_index)).first()
        if row is None or (key := self._required().find(row.key_id)) is None:
            return None
        try:
            return unseal(blob(row.sealed, f"the content of receipt {row.receipt_id}"), row.receipt_id, key)
        except FormatError as error:
            raise StoreError(f"the content of receipt {row.receipt_id} is damaged: {error}") from error

    def check_keys(self) -> None:
        """Raises StoreError where contents are sealed and there is not one key: those were lost, or are elsewhere."""
        if self._keys is None or not self._keys.is_empty():
            return
        with self._database.reading() as connection:
            sealed = connection.execute(select(contents.c.receipt_index).limit(1)).first()
        if sealed is not None:
            raise StoreError(
                "the ledger holds sealed contents, and its store of content keys is empty: it was lost, or is another "
                "one. Bring it back. Where it is lost for good, no content of before can be read again: start once "
                "with --new-content-keys"
            )

    def close(self) -> None:
        if self._keys is not None:
            self._keys.close()

    def _required(self) -> ContentKeys:
        if self._keys is None:
            raise StoreError("this ledger was opened without its content keys: contents are out of reach")
        return self._keys
