"""The free blocks of the key/value cache. Knows numbers only; the memory belongs to the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.generation.target.errors import CacheFull

BLOCK = 64  # tokens in a block of the key/value cache


class BlockPool:
    """Blocks of BLOCK tokens, handed out and taken back by number. Used by one thread.

    A full block may stand in several tables. A block that stands in none is free, also while its contents are kept.

    Memory of a block that was never handed out takes no room yet (`touched` counts the others). A block is taken from

    1. those handed out before and free, the last one freed first: its memory is there, perhaps in a processor's cache;
    2. those never handed out, while fewer than `resident` have been, or than twice those in use now;
    3. those kept, the one longest out of use first, which is forgotten;
    4. those never handed out.

    So kept blocks that stand in no table grow to `resident`, or to as many as are in use, and no further; nothing fails
    while a block is free.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.resident = total // 4  # blocks up to which new memory is taken before what is kept is given up
        self.touched = 0  # blocks 0 to touched - 1 have been handed out at some time
        self._free: list[int] = []  # of these, those in no table that hold nothing worth keeping
        self._tables = [0] * total  # that each block stands in
        self._forget: dict[int, Callable[[], None]] = {}  # of each block whose content is known to somebody
        self._kept: dict[int, None] = {}  # of these, those in no table, in the order in which they left the last one

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def used(self) -> int:
        return self.touched - len(self._free) - len(self._kept)

    def extend(self, table: list[int], tokens: int) -> None:
        """Append blocks to `table` until it holds `tokens` tokens.

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
            return self._free.pop()
        if self._kept and (self.touched >= max(self.resident, 2 * self.used) or self.touched == self.total):
            return self._given_up()
        self.touched += 1
        return self.touched - 1

    def _given_up(self) -> int:
        block = next(iter(self._kept))
        del self._kept[block]
        self._forget.pop(block)()
        return block

    def keep(self, block: int, forget: Callable[[], None]) -> None:
        """Keep what is in a block of some table as long as there is room; `forget` is called once there is no more."""
        self._forget[block] = forget

    def in_use(self, block: int) -> bool:
        """Whether it stands in a table."""
        return self._tables[block] > 0

    def share(self, table: list[int], block: int) -> None:
        """Append a block that is kept."""
        self._kept.pop(block, None)
        self._tables[block] += 1
        table.append(block)

    def release(self, table: list[int]) -> None:
        """Take back all blocks of `table` and empty it. Of those kept, the last ones are given up first."""
        for block in reversed(table):
            self._tables[block] -= 1
            if self._tables[block]:
                continue
            if block in self._forget:
                self._kept[block] = None
            else:
                self._free.append(block)
        table.clear()


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def slot_of(table: Sequence[int], position: int) -> int:
    """Where in the cache the token at `position` of a sequence with this table is."""
    return table[position // BLOCK] * BLOCK + position % BLOCK
