"""Tables of the ledger. All but the entry bytes, the contents and the rows of expiries can be derived again."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, MetaData, String, Table

REVISION = 5
"""The number of these tables, counted up where they change. A store refuses a database with another one."""

metadata = MetaData()

version = Table("ledger_version", metadata, Column("revision", Integer, primary_key=True, autoincrement=False))
"""One row with the revision of the tables."""

_Place = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER of 64 bits

leaves = Table(
    "leaves",
    metadata,
    Column("index", _Place, primary_key=True, autoincrement=False),
    Column("kind", String, nullable=False, index=True),
    Column("entry", LargeBinary, nullable=False),
    Column("envelope_digest", LargeBinary, nullable=False, unique=True),
    CheckConstraint('"index" >= 0', name="leaves_index_is_not_negative"),
)

receipts = Table(
    "receipts",
    metadata,
    Column("index", _Place, primary_key=True, autoincrement=False),
    Column("receipt_id", String, nullable=False, unique=True),
    Column("tenant", String, nullable=False),
    Column("request_id", String, nullable=False, index=True),
    Column("base_cid", String, nullable=False),
    Column("head_cid", String),
    Column("adapter_cid", String),
    Column("profile_cid", String, nullable=False),
    Column("method", String, nullable=False),
    Column("issued_at", String, nullable=False, index=True),
    Column("prompt_commitment", LargeBinary, nullable=False, index=True),
    Column("output_commitment", LargeBinary, nullable=False, index=True),
    Index("receipts_by_tenant", "tenant", "index"),
    Index("receipts_by_method", "method", "index"),
)
for _name in ("head_cid", "adapter_cid"):  # null for most receipts: an index of the others costs the rest nothing
    _given = receipts.c[_name].is_not(None)
    Index(f"receipts_by_{_name}", receipts.c[_name], receipts.c.index, sqlite_where=_given, postgresql_where=_given)

verdicts = Table(
    "verdicts",
    metadata,
    Column("index", _Place, primary_key=True, autoincrement=False),
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
    Column("receipt_index", _Place, primary_key=True, autoincrement=False),
    Column("key_id", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)
"""Sealed with keys of another database: see `content_seal`."""

erasures = Table(
    "erasures",
    metadata,
    Column("receipt_index", _Place, primary_key=True, autoincrement=False),
    Column("erasure_index", _Place, nullable=False),
)
"""The entry that has erased a receipt's content. An expiry has a row for each content that it found there."""

tiles = Table(
    "tiles",
    metadata,
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("number", _Place, primary_key=True, autoincrement=False),
    Column("hashes", LargeBinary, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", _Place, primary_key=True, autoincrement=False),
    Column("note", LargeBinary, nullable=False),
)

fence = Table(
    "fence",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", _Place, nullable=False),
    CheckConstraint("id = 0", name="fence_is_one_row"),
)
"""The epoch of the newest writer. Every write checks that it is still its own: see `fence.Fence`."""
