"""Tables of the ledger. Entry bytes are the truth; every other column is an index that can be derived again."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, MetaData, String, Table

SCHEMA_VERSION = 1
"""Kept in SQLite's `user_version`. A store refuses a database of another version."""

metadata = MetaData()

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
    Column("method", String, nullable=False),
    Column("issued_at", String, nullable=False),
    Index("receipts_by_tenant", "tenant", "index"),
    Index("receipts_by_method", "method", "index"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("index", _Place, primary_key=True, autoincrement=False),
    Column("receipt_id", String, nullable=False),
    Column("receipt_index", _Place, nullable=False),
    Column("outcome", String, nullable=False),
    Index("verdicts_by_receipt", "receipt_index", "index"),
    Index("verdicts_by_receipt_id", "receipt_id", "index"),
)

contents = Table(
    "contents",
    metadata,
    Column("receipt_index", _Place, primary_key=True, autoincrement=False),
    Column("prompt_salt", LargeBinary, nullable=False),
    Column("prompt_token_ids", LargeBinary, nullable=False),
    Column("output_salt", LargeBinary, nullable=False),
    Column("output_token_ids", LargeBinary, nullable=False),
)

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

SQLITE_TRIGGERS = tuple(
    f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    for table in ("leaves", "checkpoints")
    for action in ("UPDATE", "DELETE")
)
"""No bug of ours and no hasty hand changes what was signed. (An attacker drops the trigger; signatures catch that
one.)
"""
