"""The pool allocates blocks, lets tables share them, and keeps content as long as there is room."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.errors import CacheFull


def table_of(pool: BlockPool, blocks: int) -> list[int]:
    table: list[int] = []
    pool.extend(table, blocks * BLOCK)
    return table


def test_a_block_is_free_once_no_table_holds_it() -> None:
    pool = BlockPool(3)
    first, second = table_of(pool, 2), list[int]()
    pool.share(second, first[0])
    pool.release(first)
    assert (pool.used, pool.free) == (1, 2)
    pool.release(second)
    assert (pool.used, pool.free) == (0, 3)


def test_what_is_kept_counts_as_free_and_is_given_up_last_and_the_oldest_first() -> None:
    pool, forgotten = BlockPool(4), list[int]()
    pool.resident = 4
    table = table_of(pool, 3)
    for block in table:
        pool.keep(block, lambda block=block: forgotten.append(block))  # type: ignore[misc]
    held = list(table)
    pool.release(table)
    assert pool.free == 4
    other = table_of(pool, 1)
    assert not forgotten
    more = table_of(pool, 2)
    assert forgotten == [held[2], held[1]]  # the end of a table is worth less than its beginning
    assert sorted(other + more + [held[0]]) == [0, 1, 2, 3]


def keeping(pool: BlockPool, blocks: int) -> list[int]:
    """Allocate, keep and release a table of `blocks` blocks; return them."""
    table = table_of(pool, blocks)
    for block in table:
        pool.keep(block, lambda: None)
    held = list(table)
    pool.release(table)
    return held


def test_what_is_freed_is_handed_out_again_before_new_memory_is_touched_the_last_first() -> None:
    pool = BlockPool(100)
    first, second = table_of(pool, 2), table_of(pool, 1)
    freed = [*first, *second]
    pool.release(first)
    pool.release(second)
    assert table_of(pool, 3) == [2, 0, 1]
    assert (freed, pool.touched) == ([0, 1, 2], 3)


def test_blocks_without_a_table_or_kept_content_are_unused() -> None:
    pool = BlockPool(100)
    table, held = table_of(pool, 6), table_of(pool, 2)
    pool.keep(table[3], lambda: None)
    pool.release(table)
    assert pool.unused() == [range(3), range(4, 6)]
    assert held == [6, 7]


def test_a_returned_block_is_unused_only_after_another_use() -> None:
    pool = BlockPool(100)
    pool.release(table_of(pool, 6))
    pool.note_returned()
    assert pool.unused() == []
    pool.release(table_of(pool, 2))
    assert pool.unused() == [range(2)]


def test_nothing_fails_while_anything_is_free() -> None:
    pool, forgotten = BlockPool(10), list[int]()
    table = table_of(pool, 6)
    for block in table[:4]:
        pool.keep(block, lambda block=block: forgotten.append(block))  # type: ignore[misc]
    pool.release(table)
    assert sorted(table_of(pool, 10)) == list(range(10))
    assert len(forgotten) == 4
    with pytest.raises(CacheFull):
        table_of(pool, 1)


@given(seed=st.integers(0, 2**32))
def test_no_block_is_lost_or_in_use_twice(seed: int) -> None:
    rng, tables, known = random.Random(seed), [list[int]() for _ in range(4)], set[int]()
    pool = BlockPool(8)
    pool.resident = rng.choice((2, 0, 5, 8))
    for _ in range(60):
        table = rng.choice(tables)
        act = rng.random()
        if act < 0.4:
            try:
                before = set().union(*tables)
                size = len(table)
                pool.extend(table, (size + rng.randrange(1, 3)) * BLOCK)
                assert not before & set(table[size:]), "allocated while in use"
                assert not known & set(table[size:]), "still kept"
            except CacheFull:
                assert pool.free < 2
        elif act < 0.6:
            pool.release(table)
        elif act < 0.8 and table:
            block = rng.choice(table)
            if block not in known:
                known.add(block)
                pool.keep(block, lambda block=block: known.remove(block))  # type: ignore[misc]
        elif known and not table:
            pool.share(table, rng.choice(sorted(known)))
        assert pool.used == len(set().union(*tables))
    for table in tables:
        pool.release(table)
    assert (pool.free, pool.used) == (8, 0)
