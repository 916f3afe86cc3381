"""A Catalogue in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite

from services.registry.catalogue import (
    PUBLICATION,
    WITHDRAWAL,
    CataloguedHead,
    Check,
    HeadFilter,
    HeadReference,
    HeadRow,
    Signed,
)
from services.registry.sql.database import Database, lock_blobs, lock_name
from services.registry.sql.schema import documents, heads

_ROWS_AT_ONCE = 100  # a manifest has at most 256 KiB

_IS_PUBLISHED = exists().where(
    documents.c.head_cid == heads.c.head_cid,
    documents.c.kind == PUBLICATION,
    documents.c.ledger_index.is_not(None),
)
_IS_WITHDRAWN = exists().where(
    documents.c.head_cid == heads.c.head_cid,
    documents.c.kind == WITHDRAWAL,
    documents.c.ledger_index.is_not(None),
)


class SqlCatalogue:
    """A Catalogue on a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str) -> SqlCatalogue:
        """Raises SQLAlchemyError, OSError."""
        return cls(Database.open(url))

    def propose(self, row: HeadRow, document: Signed, check: Check = lambda first: None) -> Signed:
        with self._database.writing() as connection:
            lock_blobs(connection, alone=False)
            check(_first_of_name(connection, document))
            _insert_new(connection, heads, head_cid=row.head_cid, base_cid=row.base_cid, manifest=row.manifest)
            _insert_new(
                connection,
                documents,
                kind=document.kind,
                head_cid=document.head_cid,
                key=document.key,
                envelope=document.envelope,
            )
            return _signed(connection.execute(select(documents).where(_same(document))).one())

    def rows(self) -> Iterator[HeadRow]:
        with self._database.reading() as connection:
            yield from _rows(connection)

    @contextmanager
    def removing(self) -> Iterator[Iterator[HeadRow]]:
        with self._database.writing() as connection:
            lock_blobs(connection, alone=True)
            yield _rows(connection)

    def confirm(self, document: Signed, ledger_index: int) -> None:
        with self._database.writing() as connection:
            connection.execute(documents.update().where(_same(document)).values(ledger_index=ledger_index))

    def retract(self, document: Signed) -> None:
        with self._database.writing() as connection:
            connection.execute(
                documents.delete().where(
                    _same(document),
                    documents.c.ledger_index.is_(None),
                    documents.c.envelope == document.envelope,
                )
            )

    def proposals(self) -> Sequence[Signed]:
        with self._database.reading() as connection:
            unconfirmed = select(documents).where(documents.c.ledger_index.is_(None)).order_by(documents.c.id)
            return [_signed(row) for row in connection.execute(unconfirmed)]

    def head(self, head_cid: str) -> CataloguedHead | None:
        found = self._read(select(heads).where(heads.c.head_cid == head_cid, _IS_PUBLISHED))
        return found[0] if found else None

    def heads(self, narrow: HeadFilter, after: int, limit: int) -> Sequence[CataloguedHead]:
        query = select(heads).where(heads.c.position > after, _IS_PUBLISHED)
        if narrow.base_cid is not None:
            query = query.where(heads.c.base_cid == narrow.base_cid)
        if narrow.name is not None:
            query = query.where(_bears(narrow.name))
        if not narrow.withdrawn:
            query = query.where(~_IS_WITHDRAWN)
        return self._read(query.order_by(heads.c.position).limit(limit))

    def candidates(self, reference: HeadReference, base_cid: str | None, limit: int) -> Sequence[CataloguedHead]:
        newest = func.max(documents.c.ledger_index)
        published = (documents.c.kind == PUBLICATION) & documents.c.ledger_index.is_not(None)
        query = select(heads).join(documents, documents.c.head_cid == heads.c.head_cid).where(published)
        # A range instead of LIKE: digits are never patterns, and the index serves it.
        query = query.where(heads.c.head_cid >= reference.cid_prefix, heads.c.head_cid < reference.cid_prefix + "\x7f")
        if reference.name is not None:
            query = query.where(documents.c.key == reference.name)
        if base_cid is not None:
            query = query.where(heads.c.base_cid == base_cid)
        return self._read(query.group_by(*heads.c).order_by(newest.desc()).limit(limit))

    def close(self) -> None:
        self._database.close()

    def _read(self, query: Select[tuple[object, ...]]) -> list[CataloguedHead]:
        """The heads of a query, with everything confirmed about them."""
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            confirmed = (
                select(documents)
                .where(documents.c.head_cid.in_([row.head_cid for row in rows]), documents.c.ledger_index.is_not(None))
                .order_by(documents.c.ledger_index)
            )
            about: dict[str, list[Signed]] = {row.head_cid: [] for row in rows}
            for found in connection.execute(confirmed):
                about[found.head_cid].append(_signed(found))
        return [
            CataloguedHead(
                row.position, HeadRow(row.head_cid, row.base_cid, bytes(row.manifest)), tuple(about[row.head_cid])
            )
            for row in rows
        ]


def _first_of_name(connection: Connection, document: Signed) -> Signed | None:
    """The first publication under the name that the document gives, if it is one and there is one."""
    if document.kind != PUBLICATION:
        return None
    lock_name(connection, document.key)
    named = select(documents).where(documents.c.kind == PUBLICATION, documents.c.key == document.key)
    row = connection.execute(named.order_by(documents.c.id).limit(1)).first()
    return None if row is None else _signed(row)


def _rows(connection: Connection) -> Iterator[HeadRow]:
    any_document = exists().where(documents.c.head_cid == heads.c.head_cid)
    query = select(heads).where(any_document).execution_options(yield_per=_ROWS_AT_ONCE)
    for row in connection.execute(query):
        yield HeadRow(row.head_cid, row.base_cid, bytes(row.manifest))


def _insert_new(connection: Connection, table: object, **values: object) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(insert(table).values(**values).on_conflict_do_nothing())  # type: ignore[arg-type]


def _same(document: Signed) -> ColumnElement[bool]:
    return (
        (documents.c.kind == document.kind)
        & (documents.c.head_cid == document.head_cid)
        & (documents.c.key == document.key)
    )


def _bears(name: str) -> ColumnElement[bool]:
    return exists().where(
        documents.c.head_cid == heads.c.head_cid,
        documents.c.kind == PUBLICATION,
        documents.c.key == name,
        documents.c.ledger_index.is_not(None),
    )


def _signed(row: Row[tuple[object, ...]]) -> Signed:
    return Signed(row.kind, row.head_cid, row.key, bytes(row.envelope), row.ledger_index)
