"""The first tables: jobs and the draw that is on its way into the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit_jobs",
        sa.Column("receipt_index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String, nullable=True),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("until", sa.Float(53), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("dead", sa.Boolean, nullable=False),
        sa.Column("error", sa.String, nullable=False),
    )
    op.create_table(
        "audit_draw",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String, nullable=True),
        sa.Column("until", sa.Float(53), nullable=False),
        sa.Column("envelope", sa.LargeBinary, nullable=True),
    )
