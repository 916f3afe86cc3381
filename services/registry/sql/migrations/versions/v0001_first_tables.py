"""The first tables: heads, documents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Place = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "heads",
        sa.Column("position", _Place, primary_key=True, autoincrement=True),
        sa.Column("head_cid", sa.String, nullable=False, unique=True),
        sa.Column("base_cid", sa.String, nullable=False, index=True),
        sa.Column("manifest", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "documents",
        sa.Column("id", _Place, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("head_cid", sa.String, sa.ForeignKey("heads.head_cid"), nullable=False, index=True),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("ledger_index", _Place, nullable=True),
        sa.UniqueConstraint("kind", "head_cid", "key", name="documents_one_a_key"),
    )
    op.create_index("documents_by_key", "documents", ["kind", "key"])
