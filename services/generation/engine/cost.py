"""The cost model: seconds of a pass on this device, and from which probability on a draft token pays."""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 1.25  # times its cost that a draft has to be worth: estimates err, and a draft costs more than rows


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a pass over r rows of s sequences with k cached tokens in all:

        fixed + r * (row + seen * k / s) + k * key

    A sequence's cache is fetched from memory once for all of its rows, `key` for each token; each row then computes
    with the tokens that it sees, `seen` for each.
    """

    fixed: float
    row: float
    key: float = 0.0
    seen: float = 0.0

    def of(self, rows: int, keys: int = 0, sequences: int = 1) -> float:
        return self.fixed + self.of_row(keys, sequences) * rows + self.key * keys

    def of_row(self, keys: int = 0, sequences: int = 1) -> float:
        """One more row of one of the sequences."""
        return self.row + self.seen * keys / sequences

    def breakeven(self, rows: int, sequences: int, keys: int = 0) -> float:
        """Acceptance probability from which a draft token raises tokens per second.

        A pass over `rows` rows that emits one token for each of `sequences` makes sequences / of(rows, keys, sequences)
        tokens per second. One more row adds `of_row` seconds and, with probability p, one token: a gain if p / of_row
        is above that rate.
        """
        return min(1.0, self.of_row(keys, sequences) * sequences / self.of(rows, keys, sequences))

    @classmethod
    def fit(cls, samples: list[tuple[int, float]], key: float = 0.0, seen: float = 0.0) -> PassCost:
        """Least squares line through (rows, seconds), with neither coefficient below 1 % of the cheapest pass."""
        count = len(samples)
        mean_rows = sum(rows for rows, _ in samples) / count
        mean_seconds = sum(seconds for _, seconds in samples) / count
        spread = sum((rows - mean_rows) ** 2 for rows, _ in samples)
        slope = sum((rows - mean_rows) * (seconds - mean_seconds) for rows, seconds in samples) / (spread or 1.0)
        least = 0.01 * min(seconds for _, seconds in samples)
        row = max(slope, least)
        return cls(fixed=max(mean_seconds - row * mean_rows, least), row=row, key=key, seen=seen)
