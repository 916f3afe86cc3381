"""The first tables: leaves, receipts, verdicts, contents, tiles, checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Place = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "leaves",
        sa.Column("index", _Place, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String, nullable=False, index=True),
        sa.Column("entry", sa.LargeBinary, nullable=False),
        sa.Column("envelope_digest", sa.LargeBinary, nullable=False, unique=True),
        sa.CheckConstraint('"index" >= 0', name="leaves_index_is_not_negative"),
    )
    op.create_table(
        "receipts",
        sa.Column("index", _Place, primary_key=True, autoincrement=False),
        sa.Column("receipt_id", sa.String, nullable=False, unique=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("request_id", sa.String, nullable=False, index=True),
        sa.Column("base_cid", sa.String, nullable=False),
        sa.Column("method", sa.String, nullable=False),
        sa.Column("issued_at", sa.String, nullable=False),
    )
    op.create_index("receipts_by_tenant", "receipts", ["tenant", "index"])
    op.create_index("receipts_by_method", "receipts", ["method", "index"])
    op.create_table(
        "verdicts",
        sa.Column("index", _Place, primary_key=True, autoincrement=False),
        sa.Column("receipt_id", sa.String, nullable=False),
        sa.Column("receipt_index", _Place, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
    )
    op.create_index("verdicts_by_receipt", "verdicts", ["receipt_index", "index"])
    op.create_index("verdicts_by_receipt_id", "verdicts", ["receipt_id", "index"])
    op.create_table(
        "contents",
        sa.Column("receipt_index", _Place, primary_key=True, autoincrement=False),
        *(
            sa.Column(name, sa.LargeBinary, nullable=False)
            for name in ("prompt_salt", "prompt_token_ids", "output_salt", "output_token_ids")
        ),
    )
    op.create_table(
        "tiles",
        sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", _Place, primary_key=True, autoincrement=False),
        sa.Column("hashes", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("size", _Place, primary_key=True, autoincrement=False),
        sa.Column("note", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        _refuse_change_on_sqlite()


def _refuse_change_on_sqlite() -> None:
    for table in ("leaves", "checkpoints"):
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
