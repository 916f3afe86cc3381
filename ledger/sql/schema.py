"""Tables of the ledger: made in an empty database, recognised in a used one, searched for in a damaged one.

All rows can be derived again, except entry bytes, contents and the rows of expiries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    insert,
    inspect,
    text,
)

from ledger.errors import StoreDamaged
from ledger.sql.database import store_errors
from ledger.sql.versions import check_version, version_table

REVISION, KOLM = 10, "0.1.0"
"""The revision of these tables, incremented when they change, and the first version of kolm that knows it."""

metadata = MetaData()

version = version_table("ledger_version", metadata)

_Place = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER of 64 bits
_key = partial(Column[int], primary_key=True, autoincrement=False)

leaves = Table(
    "leaves",
    metadata,
    _key("index", _Place),
    Column("kind", String, nullable=False),
    Column("entry", LargeBinary, nullable=False),
    Column("envelope_digest", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),  # the running hash: `entry.chained`
    Index("leaves_by_kind", "kind", "index"),  # a poll for some kinds continues after the last index
    CheckConstraint('"index" >= 0', name="leaves_index_is_not_negative"),
)

receipts = Table(
    "receipts",
    metadata,
    _key("index", _Place),
    Column("receipt_id", String, nullable=False, unique=True),
    Column("tenant", String, nullable=False),
    Column("request_id", String, nullable=False),
    Column("base_cid", String, nullable=False),
    Column("head_cid", String),
    Column("adapter_cid", String),
    Column("profile_cid", String, nullable=False),
    Column("method", String, nullable=False),
    Column("issued_at", String, nullable=False, index=True),
    Column("prompt_commitment", LargeBinary, nullable=False),
    Column("output_commitment", LargeBinary, nullable=False),
    Column("segment", _Place, nullable=False),
    Column("prompt_tokens", _Place, nullable=False, server_default="0"),
    Column("output_tokens", _Place, nullable=False, server_default="0"),
    Column("tokens_proposed", _Place),  # null, as the next two, if another engine does not count
    Column("tokens_accepted", _Place),
    Column("target_passes", _Place),
    Index("receipts_by_tenant", "tenant", "index"),
    Index("receipts_by_method", "method", "index"),
)
# Random values would be spread over a whole index. Within a segment they fall on few pages, and a batch writes each of
# them once, however large the log is. A search looks into every segment (`queries.select_receipts`).
for _name in ("request_id", "prompt_commitment", "output_commitment"):
    Index(f"receipts_by_{_name}", receipts.c.segment, receipts.c[_name])
for _name in ("head_cid", "adapter_cid"):  # null for most receipts, which a partial index leaves out
    _given = receipts.c[_name].is_not(None)
    Index(f"receipts_by_{_name}", receipts.c[_name], receipts.c.index, sqlite_where=_given, postgresql_where=_given)

# Receipts are unique by their ids, which begin with a time: their digests would be spread over the whole index.
_no_receipt = leaves.c.kind != "receipt"
Index("leaves_by_digest", leaves.c.envelope_digest, unique=True, sqlite_where=_no_receipt, postgresql_where=_no_receipt)

verdicts = Table(
    "verdicts",
    metadata,
    _key("index", _Place),
    Column("receipt_id", String, nullable=False),
    Column("receipt_index", _Place, nullable=False),
    Column("outcome", String, nullable=False),
    Index("verdicts_by_receipt", "receipt_index", "index"),
    Index("verdicts_by_receipt_id", "receipt_id", "index"),
    Index("verdicts_by_outcome", "outcome", "receipt_index"),
)

contents = Table(
    "contents",
    metadata,
    _key("receipt_index", _Place),
    Column("key_id", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)
"""Sealed with keys of another database: see `content_seal`."""

erasures = Table(
    "erasures",
    metadata,
    _key("receipt_index", _Place),
    Column("erasure_index", _Place, nullable=False),
)
"""The entry that erased a receipt's content. An expiry has a row for each content that it erased."""

tiles = Table(
    "tiles",
    metadata,
    _key("level", Integer),
    _key("number", _Place),
    Column("hashes", LargeBinary, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _key("size", _Place),
    Column("note", LargeBinary, nullable=False),
)

fence = Table(
    "fence",
    metadata,
    _key("id", Integer),
    Column("epoch", _Place, nullable=False),
    CheckConstraint("id = 0", name="fence_is_one_row"),
)
"""The epoch of the newest writer. Every write checks that it is still its own: see `store.Fence`."""


AUDITED_RECEIPTS = (
    "CREATE VIEW audited_receipts AS "
    'SELECT r."index" AS entry, r.receipt_id, r.issued_at, r.tenant, r.request_id, r.method, r.base_cid, r.head_cid, '
    "r.adapter_cid, r.profile_cid, r.prompt_tokens, r.output_tokens, r.tokens_proposed, r.tokens_accepted, "
    "r.target_passes, CAST(r.tokens_accepted AS DOUBLE PRECISION) / NULLIF(r.tokens_proposed, 0) AS acceptance_rate, "
    "CAST(r.output_tokens AS DOUBLE PRECISION) / NULLIF(r.target_passes, 0) AS mean_acceptance_length, "
    'v.outcome, v."index" AS verdict_entry, e.erasure_index AS erased_by '
    "FROM receipts r "
    'LEFT JOIN verdicts v ON v."index" = (SELECT max(n."index") FROM verdicts n WHERE n.receipt_index = r."index") '
    'LEFT JOIN erasures e ON e.receipt_index = r."index"'
)
"""Receipts for auditors who query in SQL: tokens, acceptance, the newest verdict and the entry that erased the content.
No column needs quotation marks. The ledger itself does not read this view.
"""
_VIEW = "audited_receipts"

_SQLITE = (
    *(
        f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in ("leaves", "checkpoints")
        for action in ("UPDATE", "DELETE")
    ),
    # REPLACE deletes without firing a DELETE trigger, so the INSERT of a row that exists is refused.
    "CREATE TRIGGER leaves_refuse_replace BEFORE INSERT ON leaves "
    'WHEN NEW."index" <> (SELECT coalesce(max("index"), -1) + 1 FROM leaves) '
    "OR NEW.kind <> 'receipt' "
    "AND EXISTS (SELECT 1 FROM leaves WHERE kind <> 'receipt' AND envelope_digest = NEW.envelope_digest) "
    "BEGIN SELECT RAISE(ABORT, 'entries are appended in order, each once'); END",
    "CREATE TRIGGER checkpoints_refuse_replace BEFORE INSERT ON checkpoints "
    "WHEN EXISTS (SELECT 1 FROM checkpoints WHERE size = NEW.size) "
    "BEGIN SELECT RAISE(ABORT, 'checkpoints is append-only'); END",
)
_POSTGRESQL = (
    "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$",
    *(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        for table in ("leaves", "checkpoints")
    ),
)
_TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
    "WHERE tgenabled IN ('O', 'A') AND relnamespace = current_schema()::regnamespace",
}
"""The names of the triggers that fire, by the name of the dialect."""


def make_tables(connection: Connection, name: str) -> None:
    """Make the tables, in the connection's transaction, if the database has none of them; otherwise check them.

    `name` is the database's, for messages. Raises OtherRevision, StoreDamaged, StoreError.
    """
    if not metadata.tables.keys().isdisjoint(inspect(connection).get_table_names()):
        check_revision(connection, name)
        return check_nothing_missing(connection, name)
    metadata.create_all(connection, checkfirst=False)
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.execute(text(statement))
    connection.execute(text(AUDITED_RECEIPTS))
    connection.execute(insert(version), {"revision": REVISION, "kolm": KOLM})
    connection.execute(insert(fence), {"id": 0, "epoch": 0})


def check_revision(connection: Connection, name: str) -> None:
    """Raises OtherRevision for tables of another revision than REVISION, StoreError for none."""
    check_version(connection, version, REVISION, name)


def missing_objects(connection: Connection) -> Iterator[str]:
    """Descriptions of the missing tables, columns, indexes, views and triggers.

    Definitions are not compared: an attacker who changes one can change rows as well, and the entries reveal that. This
    check is for a copy that lost an object. Raises the errors of the database.
    """
    there = inspect(connection)
    for table in metadata.sorted_tables:
        if not there.has_table(table.name):
            yield f"the table {table.name} is missing"
            continue
        columns = {str(column["name"]) for column in there.get_columns(table.name)}
        lost = [column.name for column in table.columns if column.name not in columns]
        yield from (f"the column {name} of {table.name} is missing" for name in lost)
        indexes = {index["name"] for index in there.get_indexes(table.name)}
        yield from (f"the index {index.name} is missing" for index in table.indexes if index.name not in indexes)
    if _VIEW not in there.get_view_names():
        yield f"the view {_VIEW} is missing"
    dialect = connection.dialect.name
    triggers = set(connection.execute(text(_TRIGGERS[dialect])).scalars())
    for statement in _SQLITE if dialect == "sqlite" else _POSTGRESQL:
        _, kind, name, *_ = statement.split()
        if kind == "TRIGGER" and name not in triggers:
            yield f"the trigger {name} is missing"


def check_nothing_missing(connection: Connection, name: str) -> None:
    """Raises StoreDamaged for the first object that is missing; `name` is the database's, for the message."""
    with store_errors():
        missing = next(missing_objects(connection), None)
    if missing is not None:
        raise StoreDamaged(
            f"{name}: {missing}; `kolm ledger verify --depth quick` lists all missing objects. Nothing is written "
            "until they are restored"
        )
