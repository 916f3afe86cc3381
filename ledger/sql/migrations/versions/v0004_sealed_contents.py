"""Contents are sealed, each with a key of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from ledger.documents.content import Content
from ledger.encoding.commitment import SALT_BYTES
from ledger.errors import StoreError
from ledger.log.content_seal import ContentKeys, seal

revision = "0004"
down_revision = "0003"

_Place = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_PAGE = 500
_COLUMNS = ("receipt_index", "prompt_salt", "prompt_token_ids", "output_salt", "output_token_ids")


def upgrade() -> None:
    keys: ContentKeys | None = context.config.attributes["content_keys"]
    op.rename_table("contents", "clear_contents")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER INDEX contents_pkey RENAME TO clear_contents_pkey")
    contents = op.create_table(
        "contents",
        sa.Column("receipt_index", _Place, primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    for page in _pages():
        if keys is None:
            raise StoreError("holds contents of an older version; start the ledger once to have them sealed")
        taken = zip(page, keys.take(len(page)), strict=True)
        rows = [(index, key.key_id, seal(content, receipt_id, key)) for (index, receipt_id, content), key in taken]
        op.bulk_insert(contents, [dict(zip(("receipt_index", "key_id", "sealed"), row, strict=True)) for row in rows])
    op.drop_table("clear_contents")


def _pages() -> Iterator[list[tuple[int, str, Content]]]:
    clear = sa.table("clear_contents", *(sa.column(name) for name in _COLUMNS))
    receipts = sa.table("receipts", sa.column("index"), sa.column("receipt_id"))
    statement = sa.select(*clear.c, receipts.c.receipt_id).join(receipts, receipts.c.index == clear.c.receipt_index)
    after = -1
    while True:
        page = statement.where(clear.c.receipt_index > after).order_by(clear.c.receipt_index).limit(_PAGE)
        found = op.get_bind().execute(page).all()
        if not found:
            return
        after = found[-1].receipt_index
        yield [(row.receipt_index, row.receipt_id, _content(row)) for row in found]


def _content(row: Any) -> Content:
    try:
        prompt, output = (
            struct.unpack(f"<{len(data) // 4}I", data) for data in (row.prompt_token_ids, row.output_token_ids)
        )
        for salt in (row.prompt_salt, row.output_salt):
            struct.unpack(f"{SALT_BYTES}s", salt)
    except (struct.error, TypeError) as error:
        raise StoreError(f"the content of entry {row.receipt_index} is damaged: {error}") from error
    return Content(row.prompt_salt, prompt, row.output_salt, output)
