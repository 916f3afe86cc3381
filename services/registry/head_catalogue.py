"""The catalogue: heads, their names, and the signed documents about them, in SQL.

Envelopes and manifests are the data; the other columns are for searches.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    exists,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from ledger.durable_file import make_folder
from services.runtime.errors import InvalidArgument, Unavailable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

_FORM = re.compile(
    r"cidv1:sha256:(?P<whole>[0-9a-f]{64})"
    r"|(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(@sha256:(?P<prefix>[0-9a-f]{1,64}))?"
)

PUBLICATION, WITHDRAWAL, KSCORE = "publication", "withdrawal", "kscore"
Check = Callable[["Signed | None"], None]
metadata = MetaData()
_RowNumber = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER of 64 bits

heads = Table(
    "heads",
    metadata,
    Column("position", _RowNumber, primary_key=True, autoincrement=True),
    Column("head_cid", String, nullable=False, unique=True),
    Column("base_cid", String, nullable=False, index=True),
    Column("manifest", LargeBinary, nullable=False),
)

documents = Table(
    "documents",
    metadata,
    Column("id", _RowNumber, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("head_cid", String, ForeignKey("heads.head_cid"), nullable=False, index=True),
    Column("key", String, nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("ledger_index", _RowNumber, nullable=True),
    UniqueConstraint("kind", "head_cid", "key", name="documents_one_a_key"),
    Index("documents_by_key", "kind", "key"),
)

_DIGITS = 64
_TABLES_LOCK = 7306001
_NAMES_LOCK = 7306003
"""The first key of the locks of `_lock_name`."""

_ON_RECORD = exists().where(documents.c.head_cid == heads.c.head_cid, documents.c.ledger_index.is_not(None))
_IS_PUBLISHED = _ON_RECORD.where(documents.c.kind == PUBLICATION)
_IS_WITHDRAWN = _ON_RECORD.where(documents.c.kind == WITHDRAWAL)
_BUSY_SECONDS = 30.0
_WAIT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class HeadReference:
    """A reference to a head. `name` is None for a full identifier; `digits` are the digest's first digits, if any."""

    text: str
    name: str | None
    digits: str

    @property
    def cid_prefix(self) -> str:
        return f"cidv1:sha256:{self.digits}"

    @classmethod
    def parse(cls, text: str) -> HeadReference:
        """Raises InvalidArgument on `reference`. The empty text refers to the newest head."""
        if not text:
            return cls("", None, "")
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                "reference", "expected <name>, <name>@sha256:<hex prefix> or cidv1:sha256:<64 hex digits>"
            )
        return cls(text, match["name"], match["whole"] or match["prefix"] or "")


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head; `head_cid` is the identifier of `manifest`."""

    head_cid: str
    base_cid: str
    manifest: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed document about a head. A head has one document for each `kind` and `key`: the first that was
    proposed.

    Keys: of a publication its name, of a withdrawal "", of a kscore the digest of the envelope. `ledger_index` is None
    until the ledger has the document; until then it is not shown.
    """

    kind: str
    head_cid: str
    key: str
    envelope: bytes
    ledger_index: int | None = None


@dataclass(frozen=True, slots=True)
class CataloguedHead:
    """A head with its documents in the order of the ledger; `position` orders the list of heads."""

    position: int
    row: HeadRow
    signed: tuple[Signed, ...]

    def of_kind(self, kind: str) -> tuple[Signed, ...]:
        return tuple(document for document in self.signed if document.kind == kind)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(document.key for document in self.of_kind(PUBLICATION))

    @property
    def withdrawal(self) -> Signed | None:
        return next(iter(self.of_kind(WITHDRAWAL)), None)


@dataclass(frozen=True, slots=True)
class HeadFilter:
    """The wanted heads. A field that is None selects all; withdrawn heads are included if `withdrawn` is true."""

    base_cid: str | None = None
    name: str | None = None
    withdrawn: bool = False


def _lock_name(connection: Connection, name: str) -> None:
    """Lock a lower-case name against other publishers until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(:lock, hashtext(:name))")
        connection.execute(lock, {"lock": _NAMES_LOCK, "name": name})


def _open_database(url: URL) -> Engine:
    """Open the database, and create missing tables.

    On SQLite a transaction locks out other writers as it begins, unless it has the execution option `reads_only`.

    Raises SQLAlchemyError, OSError.
    """
    if url.get_backend_name() == "sqlite":
        if url.database:
            make_folder(Path(url.database).parent, 0o700)
        engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    else:
        try:
            engine = create_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise SQLAlchemyError(f"PostgreSQL needs {error.name}: install kolm-serve's extra postgres") from error
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # several processes may start at the same time
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TABLES_LOCK})
            metadata.create_all(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # no transactions by the driver: `_begin` opens them
    _enable_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _enable_wal(connection: Any) -> None:
    """Switch the file to WAL mode; wait while another process does the same with a new file."""
    patience = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError:
            if time.monotonic() > patience:
                raise
            time.sleep(_WAIT_SECONDS)
        else:
            return


def _begin(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


class Catalogue:
    """Heads and signed documents about them. For any thread, and for several processes on one database.

    A document is proposed, then appended to the ledger, then confirmed; a crash in between leaves a proposal that the
    next start finishes. A head is seen once one of its publications is confirmed. Atomicity and durability: each method
    is one transaction and survives a crash once it has returned. Errors: Unavailable (CATALOGUE_UNAVAILABLE).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # SQLite has one writer, locked as a transaction begins, so that no transaction has to be repeated. Its own lock
        # between threads is a sleeping loop; this one is a queue.
        self._writer = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        self._outage = Outage(_log, "use the catalogue's database", SQLAlchemyError)

    @classmethod
    def open(cls, url: str) -> Catalogue:
        """Open `sqlite:///path` or `postgresql+psycopg://…`, and make missing tables.

        Raises SQLAlchemyError, OSError.
        """
        return cls(_open_database(make_url(url)))

    def propose(self, row: HeadRow, document: Signed, check: Check = lambda first: None) -> Signed:
        """Store a document, and its head if that is new, unless the head has a document of this kind and key. Returns
        the stored one.

        `check` runs within the transaction, while the name is locked for other publishers. It gets the first
        publication under that name, or under a name that differs only in case, of any head. If it raises, nothing is
        kept.
        """
        with self._writing() as connection:
            check(_first_of_name(connection, document))
            _insert_new(connection, heads, asdict(row))
            _insert_new(connection, documents, asdict(document))
            return _signed(connection.execute(select(documents).where(_same(document))).one())

    def confirm(self, document: Signed, ledger_index: int) -> None:
        """Note the document's index in the ledger. Confirming again changes nothing."""
        with self._writing() as connection:
            connection.execute(documents.update().where(_same(document)).values(ledger_index=ledger_index))

    def retract(self, document: Signed) -> None:
        """Delete a proposal that the ledger refuses. Confirmed documents stay."""
        with self._writing() as connection:
            unconfirmed = documents.c.ledger_index.is_(None), documents.c.envelope == document.envelope
            connection.execute(documents.delete().where(_same(document), *unconfirmed))

    def proposals(self) -> Sequence[Signed]:
        """Unconfirmed documents, oldest first."""
        with self._reading() as connection:
            unconfirmed = select(documents).where(documents.c.ledger_index.is_(None)).order_by(documents.c.id)
            return [_signed(row) for row in connection.execute(unconfirmed)]

    def head(self, head_cid: str) -> CataloguedHead | None:
        """A head that was published, withdrawn or not."""
        found = self._read(select(heads).where(heads.c.head_cid == head_cid, _IS_PUBLISHED))
        return found[0] if found else None

    def heads(self, narrow: HeadFilter, after: int, limit: int) -> Sequence[CataloguedHead]:
        """At most `limit` heads with a position greater than `after` (-1 for the first page), by position."""
        query = select(heads).where(heads.c.position > after, _IS_PUBLISHED)
        if narrow.base_cid is not None:
            query = query.where(heads.c.base_cid == narrow.base_cid)
        if narrow.name is not None:
            query = query.where(_IS_PUBLISHED.where(documents.c.key == narrow.name))
        if not narrow.withdrawn:
            query = query.where(~_IS_WITHDRAWN)
        return self._read(query.order_by(heads.c.position).limit(limit))

    def candidates(self, reference: HeadReference, base_cid: str | None, limit: int) -> Sequence[CataloguedHead]:
        """At most `limit` heads, withdrawn ones included, that match a reference; the newest publication first."""
        newest = func.max(documents.c.ledger_index)
        published = (documents.c.kind == PUBLICATION) & documents.c.ledger_index.is_not(None)
        query = select(heads).join(documents, documents.c.head_cid == heads.c.head_cid).where(published)
        if len(reference.digits) == _DIGITS:
            query = query.where(heads.c.head_cid == reference.cid_prefix)
        elif reference.digits:  # hexadecimal, so no pattern; the bounds of a range would depend on the collation
            query = query.where(heads.c.head_cid.startswith(reference.cid_prefix))
        if reference.name is not None:
            query = query.where(documents.c.key == reference.name)
        if base_cid is not None:
            query = query.where(heads.c.base_cid == base_cid)
        return self._read(query.group_by(*heads.c).order_by(newest.desc()).limit(limit))

    def close(self) -> None:
        """Release connections. Closing twice changes nothing."""
        self._engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that commits when the block ends, and rolls back if it raises."""
        with self._writer, self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with (
            self._errors(),
            self._engine.connect().execution_options(reads_only=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self._outage:
            yield
            return
        raise Unavailable("the registry's database failed; try again", reason="CATALOGUE_UNAVAILABLE")

    def _read(self, query: Select[tuple[object, ...]]) -> list[CataloguedHead]:
        """The heads of a query, with everything confirmed about them."""
        with self._reading() as connection:
            rows = connection.execute(query).all()
            confirmed = (
                select(documents)
                .where(documents.c.head_cid.in_([row.head_cid for row in rows]), documents.c.ledger_index.is_not(None))
                .order_by(documents.c.ledger_index)
            )
            about: dict[str, list[Signed]] = {row.head_cid: [] for row in rows}
            for found in connection.execute(confirmed):
                about[found.head_cid].append(_signed(found))
        return [CataloguedHead(row.position, _head_row(row), tuple(about[row.head_cid])) for row in rows]


def _first_of_name(connection: Connection, document: Signed) -> Signed | None:
    """The first publication under the document's name or, if there is none, under a name that differs only in case;
    None for other documents.
    """
    if document.kind != PUBLICATION:
        return None
    folded = document.key.lower()  # names are ASCII
    _lock_name(connection, folded)
    # PostgreSQL folds by the database's collation: in a Turkish one, I becomes a dotless i.
    key = documents.c.key.collate("C") if connection.dialect.name == "postgresql" else documents.c.key
    for same in (documents.c.key == document.key, func.lower(key) == folded):
        named = select(documents).where(documents.c.kind == PUBLICATION, same)
        if (row := connection.execute(named.order_by(documents.c.id).limit(1)).first()) is not None:
            return _signed(row)
    return None


def _head_row(row: Row[Any]) -> HeadRow:
    return HeadRow(row.head_cid, row.base_cid, bytes(row.manifest))


def _insert_new(connection: Connection, table: object, values: dict[str, object]) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(insert(table).values(values).on_conflict_do_nothing())  # type: ignore[arg-type]


def _same(document: Signed) -> ColumnElement[bool]:
    return (
        (documents.c.kind == document.kind)
        & (documents.c.head_cid == document.head_cid)
        & (documents.c.key == document.key)
    )


def _signed(row: Row[Any]) -> Signed:
    return Signed(row.kind, row.head_cid, row.key, bytes(row.envelope), row.ledger_index)
