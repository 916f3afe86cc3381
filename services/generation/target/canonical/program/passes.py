"""Running programs over the rows of passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels import team
from services.generation.target.canonical.kernels.records import PASS
from services.generation.target.rows import Rows

_PLACE = {name: number for number, name in enumerate(PASS)}


class Passes:
    """Runs one program at a time, by this process's team. Used by one thread."""

    def __init__(self, threads: int) -> None:
        self._team, self._threads = team.team(), threads
        self._words = np.zeros(len(PASS), np.int64)

    def run(self, records: NDArray[np.int64], rows: Rows) -> None:
        """Run all operations of a program [operations, words]."""
        arrays: dict[str, NDArray[Any]] = {
            "program": records, "tokens": rows.tokens, "positions": rows.positions, "slots": rows.slots,
            "sequences": rows.sequences, "contiguous": rows.contiguous, "branch_starts": rows.branch_starts,
            "branches": rows.branches, "tables": rows.tables, "wanted_rows": rows.wanted,
        }  # fmt: skip
        if rows.adapter_slots is not None:
            arrays["adapters"] = rows.adapter_slots
        for name, array in arrays.items():
            assert array.flags.c_contiguous
            self._words[_PLACE[name]] = array.ctypes.data
        self._words[_PLACE["operations"]] = len(records)
        self._words[_PLACE["rows"]], self._words[_PLACE["wanted"]] = len(rows), len(rows.wanted)
        self._words[_PLACE["table_stride"]] = rows.tables.shape[1]
        self._team.run(self._words, self._threads)
