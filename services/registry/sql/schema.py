"""Tables of the catalogue. Envelopes and manifests are the truth; the other columns are how they are found."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()

_Place = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER of 64 bits

heads = Table(
    "heads",
    metadata,
    Column("position", _Place, primary_key=True, autoincrement=True),
    Column("head_cid", String, nullable=False, unique=True),
    Column("base_cid", String, nullable=False, index=True),
    Column("manifest", LargeBinary, nullable=False),
)

documents = Table(
    "documents",
    metadata,
    Column("id", _Place, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("head_cid", String, ForeignKey("heads.head_cid"), nullable=False, index=True),
    Column("key", String, nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("ledger_index", _Place, nullable=True),
    UniqueConstraint("kind", "head_cid", "key", name="documents_one_a_key"),
    Index("documents_by_key", "kind", "key"),
)
