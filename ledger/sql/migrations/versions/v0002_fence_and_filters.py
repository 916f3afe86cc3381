"""The writer's fence; receipts found by head, adapter, profile and time; triggers that no statement can bypass."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledger.sql.migrations.receipt_rows import fill

revision = "0002"
down_revision = "0001"

_Place = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _fence()
    _receipts()
    op.create_index("verdicts_by_outcome", "verdicts", ["outcome", "receipt_index"])
    if op.get_bind().dialect.name == "sqlite":
        _sqlite_triggers()
        op.execute("PRAGMA user_version=2")  # the first release looked here, and must not open a newer schema
    else:
        _postgres_triggers()


def _fence() -> None:
    table = op.create_table(
        "fence",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", _Place, nullable=False),
        sa.CheckConstraint("id = 0", name="fence_is_one_row"),
    )
    op.bulk_insert(table, [{"id": 0, "epoch": 0}])


def _receipts() -> None:
    """Made anew from the entries: every column follows from them."""
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
    )
    op.create_index("receipts_by_tenant", "receipts", ["tenant", "index"])
    op.create_index("receipts_by_method", "receipts", ["method", "index"])
    for name in ("head_cid", "adapter_cid"):
        given = sa.text(f"{name} IS NOT NULL")
        op.create_index(f"receipts_by_{name}", "receipts", [name, "index"], sqlite_where=given, postgresql_where=given)
    fill(receipts)


def _sqlite_triggers() -> None:
    # REPLACE deletes without firing a DELETE trigger, so a row that is in the way has to be refused at the INSERT.
    _refuse_insert("leaves", "entries are appended in order, each once", (
        'NEW."index" <> (SELECT coalesce(max("index"), -1) + 1 FROM leaves) '
        "OR EXISTS (SELECT 1 FROM leaves WHERE envelope_digest = NEW.envelope_digest)"
    ))  # fmt: skip
    _refuse_insert(
        "checkpoints", "checkpoints is append-only", "EXISTS (SELECT 1 FROM checkpoints WHERE size = NEW.size)"
    )


def _refuse_insert(table: str, reason: str, condition: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table} "
        f"WHEN {condition} BEGIN SELECT RAISE(ABORT, '{reason}'); END"
    )


def _postgres_triggers() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in ("leaves", "checkpoints"):
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
