"""Which blocks of the key/value cache are free. Knows numbers only; the memory belongs to the target."""

from __future__ import annotations

from services.generation.target.errors import CacheFull
from services.generation.target.kernels import BLOCK


class BlockPool:
    """Blocks of BLOCK tokens, handed out and taken back by number. Used by one thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def extend(self, table: list[int], tokens: int) -> None:
        """Append blocks to `table` until it holds `tokens` tokens.

        Raises:
            CacheFull: too few are free; `table` is unchanged.
        """
        needed = blocks_for(tokens) - len(table)
        if needed > len(self._free):
            raise CacheFull(f"{needed} cache blocks needed, {len(self._free)} of {self.total} free")
        for _ in range(needed):
            table.append(self._free.pop())

    def release(self, table: list[int]) -> None:
        """Take back all blocks of `table` and empty it."""
        self._free += reversed(table)
        table.clear()


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)
