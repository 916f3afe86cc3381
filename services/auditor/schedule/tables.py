"""Tables of the schedule. Nothing is lost with them: obligations follow from the log."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, MetaData, String, Table

metadata = MetaData()

jobs = Table(
    "audit_jobs",
    metadata,
    Column("receipt_index", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String, nullable=True),  # the lease that holds it; NULL where none does
    Column("label", String, nullable=False),  # host and process of the holder, for people
    Column("until", Float(53), nullable=False),  # Unix seconds: end of the lease, or of the pause where none holds it
    Column("attempts", Integer, nullable=False),
    Column("dead", Boolean, nullable=False),
    Column("error", String, nullable=False),
)

draw = Table(
    "audit_draw",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String, nullable=True),
    Column("until", Float(53), nullable=False),
    Column("envelope", LargeBinary, nullable=True),
)
