"""Receipts found by what they commit to: the prompt's commitment and the output's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledger.sql.migrations.receipt_rows import fill

revision = "0003"
down_revision = "0002"

_Place = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.drop_table("receipts")
    receipts = op.create_table(
        "receipts",
        sa.Column("index", _Place, primary_key=True, autoincrement=False),
        sa.Column("receipt_id", sa.String, nullable=False, unique=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("request_id", sa.String, nullable=False, index=True),
        sa.Column("base_cid", sa.String, nullable=False),
        sa.Column("head_cid", sa.String),
        sa.Column("adapter_cid", sa.String),
        sa.Column("profile_cid", sa.String, nullable=False),
        sa.Column("method", sa.String, nullable=False),
        sa.Column("issued_at", sa.String, nullable=False, index=True),
        sa.Column("prompt_commitment", sa.LargeBinary, nullable=False, index=True),
        sa.Column("output_commitment", sa.LargeBinary, nullable=False, index=True),
    )
    op.create_index("receipts_by_tenant", "receipts", ["tenant", "index"])
    op.create_index("receipts_by_method", "receipts", ["method", "index"])
    for name in ("head_cid", "adapter_cid"):
        given = sa.text(f"{name} IS NOT NULL")
        op.create_index(f"receipts_by_{name}", "receipts", [name, "index"], sqlite_where=given, postgresql_where=given)
    fill(receipts)
