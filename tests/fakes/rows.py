"""The rows of a pass over one sequence."""

from collections.abc import Sequence

from services.generation.target.rows import Rows, RowsBuilder


def tree_rows(
    table: Sequence[int], length: int, tokens: Sequence[int], parents: Sequence[int] | None = None, adapter: int = -1
) -> Rows:
    """A token tree after `length` cached tokens; without parents, each token follows the one before it."""
    rows = RowsBuilder()
    rows.add_tree(table, length, tokens, range(-1, len(tokens) - 1) if parents is None else parents, adapter)
    return rows.build()


def chunk_rows(table: Sequence[int], length: int, tokens: Sequence[int], *, want_last: bool = True) -> Rows:
    """The next tokens of a prompt after `length` cached ones."""
    rows = RowsBuilder()
    rows.add_chunk(table, length, tokens, want_last)
    return rows.build()
