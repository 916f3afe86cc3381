"""The free blocks of the key/value cache, by number; the memory belongs to the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from services.generation.target.errors import CacheFull

BLOCK = 64  # tokens in a block of the key/value cache


class BlockPool:
    """Allocator of blocks of BLOCK tokens. Used by one thread.

    A full block may be in several tables. A block in no table is free, even while its content is kept for reuse.

    A block takes no memory before its first use (`touched` counts used blocks). Blocks are allocated from

    1. used blocks that are free and not kept, most recently freed first: their memory may be in a processor's cache;
    2. new blocks, while fewer than `resident` blocks are used, or fewer than twice the blocks in tables;
    3. kept blocks, least recently used first, whose content is forgotten;
    4. new blocks.

    Kept blocks in no table therefore grow to `resident`, or to the number of blocks in tables. Allocation succeeds as
    long as a block is free.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.resident = total // 4  # used blocks before kept blocks are given up
        self.touched = 0  # blocks 0 to touched - 1 have been used
        self._free: list[int] = []  # used blocks in no table without kept content
        self._tables = [0] * total  # the number of tables of each block
        self._forget: dict[int, Callable[[], None]] = {}  # of each block with kept content
        self._returned: set[int] = set()  # of them, those without memory
        self._kept: dict[int, None] = {}  # kept blocks in no table, least recently used first

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def used(self) -> int:
        return self.touched - len(self._free) - len(self._kept)

    def extend(self, table: list[int], tokens: int) -> None:
        """Append blocks to `table` until it has room for `tokens` tokens.

        Raises:
            CacheFull: too few are free; `table` is unchanged.
        """
        needed = blocks_for(tokens) - len(table)
        if needed > self.free:
            raise CacheFull(f"{needed} cache blocks needed, {self.free} of {self.total} free")
        for _ in range(needed):
            block = self._next()
            self._tables[block] = 1
            table.append(block)

    def _next(self) -> int:
        if self._free:
            block = self._free.pop()
            self._returned.discard(block)
            return block
        if self._kept and (self.touched >= max(self.resident, 2 * self.used) or self.touched == self.total):
            return self._evict()
        self.touched += 1
        return self.touched - 1

    def _evict(self) -> int:
        block = next(iter(self._kept))
        del self._kept[block]
        self._forget.pop(block)()
        return block

    def unused(self) -> list[range]:
        """Runs of used blocks that are free now, without kept content, but with memory."""
        runs: list[range] = []
        for block in sorted({*self._free} - self._returned):
            if runs and runs[-1].stop == block:
                runs[-1] = range(runs[-1].start, block + 1)
            else:
                runs.append(range(block, block + 1))
        return runs

    def note_returned(self) -> None:
        """Note that unused blocks have no memory until they are used again."""
        self._returned.update(self._free)

    def keep(self, block: int, forget: Callable[[], None]) -> None:
        """Keep the content of a block in a table as long as there is room; `forget` is called on its eviction."""
        self._forget[block] = forget

    def in_use(self, block: int) -> bool:
        """Whether a block is in a table."""
        return self._tables[block] > 0

    def share(self, table: list[int], block: int) -> None:
        """Append a kept block to `table`."""
        self._kept.pop(block, None)
        self._tables[block] += 1
        table.append(block)

    def release(self, table: list[int]) -> None:
        """Free all blocks of `table` and empty it. Its last kept block is evicted first."""
        for block in reversed(table):
            self._tables[block] -= 1
            if self._tables[block]:
                continue
            if block in self._forget:
                self._kept[block] = None
            else:
                self._free.append(block)
        table.clear()

    @contextmanager
    def lent(self, tokens: int) -> Iterator[list[int]]:
        """A table with room for `tokens` tokens, released at the end of the block. Raises as `extend` does."""
        table: list[int] = []
        self.extend(table, tokens)
        try:
            yield table
        finally:
            self.release(table)


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def slot_of(table: Sequence[int], position: int) -> int:
    """The cache slot of the token at `position` of a sequence with this block table."""
    return table[position // BLOCK] * BLOCK + position % BLOCK
