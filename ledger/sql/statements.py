"""The statements of every batch and every proof, built once: building one costs more than running it."""

from __future__ import annotations

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from ledger.sql.schema import checkpoints, erasures, leaves, tiles

LAST_INDEX = select(func.max(leaves.c.index))
ENTRY = select(leaves.c.entry).where(leaves.c.index == bindparam("index"))
ENTRIES = (
    select(leaves.c.index, leaves.c.entry)
    .where(leaves.c.index >= bindparam("start"))
    .order_by(leaves.c.index)
    .limit(bindparam("most"))
)

TILE = select(tiles.c.hashes).where(tiles.c.level == bindparam("level"), tiles.c.number == bindparam("number"))

_tile: dict[str, sqlite.Insert | postgresql.Insert] = {
    "sqlite": sqlite.insert(tiles),
    "postgresql": postgresql.insert(tiles),
}
PUT_TILE = {
    dialect: put.on_conflict_do_update(index_elements=["level", "number"], set_={"hashes": put.excluded.hashes})
    for dialect, put in _tile.items()
}
"""By the name of the dialect."""

_erasure: dict[str, sqlite.Insert | postgresql.Insert] = {
    "sqlite": sqlite.insert(erasures),
    "postgresql": postgresql.insert(erasures),
}
PUT_ERASURE = {dialect: put.on_conflict_do_nothing() for dialect, put in _erasure.items()}
"""By the name of the dialect. The first entry stays: a restored backup may have content that was erased before."""

ERASED_BY = select(erasures.c.erasure_index).where(erasures.c.receipt_index == bindparam("receipt_index"))

CHECKPOINT = select(checkpoints.c.note).where(checkpoints.c.size == bindparam("size"))
PUT_CHECKPOINT = insert(checkpoints)
