"""The probe, run at start on the loaded model: it checks that a row's bits depend only on its own tokens.

Random widths, branches, positions, neighbours and prefill chunks are compared, bit by bit, with passes over one row at
a time, in one layer of each kind; the whole model computes one history in wide passes, and parts of it again. The probe
uses a free part of the target's own cache.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ledger.encoding.text_forms import cid_of_json
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK
from services.generation.target.kept_results import KeptResults
from services.generation.target.kernels.compilation import user_cache
from services.generation.target.kernels.machine import cpus
from services.generation.target.progress import Progress
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

SAMPLER = "kolm-sampler/2"
_MOST_TOKENS = 2 * BLOCK + 12  # of the probed history: two block borders and their surroundings
_WIDTHS = (2, 3, 5, 8, 16)
_WIDE = 35  # rows of the whole model's passes
_STRETCHES = ((16, 0), (8, BLOCK - 4), (2, BLOCK - 1), (5, 2 * BLOCK - 3), (3, 2 * BLOCK - 1), (1, _MOST_TOKENS))
"""Rows of the whole model's other passes, and the position of the first, at most the last one possible."""


@dataclass(frozen=True, slots=True)
class NumericsProfile:
    """A numerics profile and the probe's report. Two machines with one `cid` compute the same bits."""

    document: dict[str, Any]
    cid: str
    report: ProbeReport

    @property
    def passed(self) -> bool:
        """Whether speculation may be served; plain decoding is the reference and needs no probe."""
        return self.report.passed


def measure_profile(target: Target, kept: KeptProbes | None = None) -> NumericsProfile:
    """The profile of a freshly loaded target. It is probed unless `kept` has an earlier result."""
    report = (kept.find(target) or _probed(target, kept)) if kept else probe(target)
    document = {"type": "kolm.profile.v2", **target.numerics, "sampler": SAMPLER, "fingerprint": report.fingerprint}
    if target.config.joined_end_ids:  # older versions did not stop at these tokens: their outputs are not replayed here
        document["joined_end_ids"] = list(target.config.joined_end_ids)
    return NumericsProfile(document, cid_of_json(document), report)


def _probed(target: Target, kept: KeptProbes) -> ProbeReport:
    _log.info("probing the numerics, once for this model on this machine")
    with kept.probing():  # a server and its auditor start together: one of them probes
        report = kept.find(target)
        if report is None:
            report = probe(target)
            kept.keep(target, report)
    return report


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The number of compared rows, and descriptions of the rows that differed.

    `fingerprint` is the SHA-256 of the base's logits over the probed history, without adapters: it differs between two
    machines whose bits differ for any reason. If rows differed, it covers passes of one row.
    """

    compared: int
    failures: tuple[str, ...]
    fingerprint: str

    @property
    def passed(self) -> bool:
        return self.compared > 0 and not self.failures


def probe(target: Target, *, seed: int = 0) -> ProbeReport:
    """Compare single kernels at all sizes (`Target.probe_kernels`); batched passes of one layer of each kind with
    passes over one row (`Target.abridged`); and passes of the whole model of several widths with wide ones, at the
    borders of cache blocks.

    The base is probed without an adapter, then with each loaded adapter; neighbouring rows have any adapter or none.

    Raises:
        CacheFull: the cache has no room for three short sequences; probe before serving.
    """
    kernels, abridged = target.probe_kernels(), target.abridged()
    compared, failures, fingerprints = kernels.compared, list(kernels.failures), []
    for adapter in range(-1, len(target.adapters)):
        layers, whole = (_Probing(each, random.Random(seed), adapter) for each in (abridged, target))
        with layers:
            layers.chunks()
            layers.trees()
            layers.moves()
        with whole:
            fingerprints.append(whole.widths())
        compared += layers.compared + whole.compared
        failures += layers.failures + whole.failures
    if failures:  # rows are then served one at a time
        with _Probing(target, random.Random(seed), -1) as alone:
            fingerprints[0] = _fingerprint(alone.alone)
    return ProbeReport(compared, tuple(failures), fingerprints[0])


def _fingerprint(logits: Iterable[Float32]) -> str:
    sha256 = hashlib.sha256()
    for row in logits:
        sha256.update(row.tobytes())
    return f"sha256:{sha256.hexdigest()}"


class _Probing:
    def __init__(self, target: Target, rng: random.Random, adapter: int) -> None:
        self._target = target
        self._rng = rng
        self._adapter = adapter
        self._label = f", adapter {target.adapters[adapter].name}" if adapter >= 0 else ""
        self._tables: list[list[int]] = []
        self.compared = 0
        self.failures: list[str] = []
        length = min(_MOST_TOKENS, target.config.context_length - max(_WIDTHS) - 1)
        self._tokens = self._random_tokens(max(length, 1))
        self._table = self._new_table()

    @cached_property
    def alone(self) -> list[Float32]:
        """The logits of the history, computed one row at a time."""
        return [self._row(self._table, i, token) for i, token in enumerate(self._tokens)]

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._target.config.vocab_size) for _ in range(count)]

    def _any_adapter(self) -> int:
        return self._rng.randrange(-1, len(self._target.adapters)) if self._target.adapters else -1

    def _new_table(self) -> list[int]:
        table: list[int] = []
        self._tables.append(table)
        self._target.blocks.extend(table, min(_MOST_TOKENS, self._target.config.context_length) + max(_WIDTHS) + 1)
        return table

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self._tables:
            self._target.blocks.release(table)

    def _row(self, table: list[int], length: int, token: int) -> Float32:
        rows = RowsBuilder()
        rows.add_tree(table, length, [token], [-1], self._adapter)
        row: Float32 = self._target.forward(rows.build()).logits[0]
        return row

    def _compare(self, case: str, row: Float32, alone: Float32) -> None:
        self.compared += 1
        if row.tobytes() != alone.tobytes():
            self.failures.append(f"{case}{self._label}: {int((row != alone).sum())} of {len(row)} logits differ")

    def widths(self) -> str:
        """Compute the history in wide passes, beside a neighbour's rows, and stretches of it again in passes of 1 to 16
        rows. Compare these rows; returns the fingerprint of all.
        """
        count = len(self._tokens)
        firsts = [(width, max(min(first, count - width), 0)) for width, first in _STRETCHES]
        stretches = [range(first, min(first + width, count)) for width, first in firsts]
        fingerprint, wide = self._in_wide_passes({at for each in stretches for at in each})
        for stretch in stretches:
            tokens = self._tokens[stretch.start : stretch.stop]
            for at, row in zip(stretch, self._chain(RowsBuilder(), self._table, stretch.start, tokens), strict=True):
                self._compare(f"position {at} in a pass of {len(tokens)} rows", row, wide[at])
        return fingerprint

    def _in_wide_passes(self, kept: Collection[int]) -> tuple[str, dict[int, Float32]]:
        """The fingerprint of the history's logits, and those at some positions."""
        sha256, wide, neighbour = hashlib.sha256(), dict[int, Float32](), self._new_table()
        progress = Progress(f"probing the whole model{self._label}", len(self._tokens), "tokens")
        for begin in range(0, len(self._tokens), _WIDE):
            progress.reach(begin)
            beside = RowsBuilder()
            beside.add_chunk(neighbour, 0, self._random_tokens(3), False, self._any_adapter())
            tokens = self._tokens[begin : begin + _WIDE]
            for at, row in enumerate(self._chain(beside, self._table, begin, tokens), begin):
                sha256.update(row)
                if at in kept:
                    wide[at] = row.copy()  # or the target would keep the memory of all logits of the pass
            del row
        return f"sha256:{sha256.hexdigest()}", wide

    def _chain(self, rows: RowsBuilder, table: list[int], length: int, tokens: list[int]) -> Float32:
        """The logits of successive tokens, in one pass with the rows that there are already."""
        rows.add_tree(table, length, tokens, range(-1, len(tokens) - 1), self._adapter)
        return self._target.forward(rows.build()).logits

    def chunks(self) -> None:
        """Compare the logits at the end of each chunk when the history is computed in chunks of several sizes."""
        for size in (7, 33, len(self._tokens)):
            table, at = self._new_table(), 0
            while at < len(self._tokens):
                chunk = self._tokens[at : at + size]
                rows = RowsBuilder()
                rows.add_chunk(table, at, chunk, True, self._adapter)
                at += len(chunk)
                row = self._target.forward(rows.build()).logits[0]
                self._compare(f"prefill in chunks of {size}, position {at - 1}", row, self.alone[at - 1])
            self._target.blocks.release(table)

    def trees(self) -> None:
        """Compare chains and random trees of several widths at several lengths, between rows of a neighbour."""
        neighbour = self._new_table()
        last = len(self._tokens) - 1
        lengths = {0, last, *(at for edge in (BLOCK, 2 * BLOCK) for at in (edge - 3, edge - 1, edge) if at < last)}
        for length in sorted(lengths):
            width = self._rng.choice(_WIDTHS)
            self._tree(length, width, neighbour, branching=self._rng.random() < 0.7)
        for width in _WIDTHS:
            self._tree(self._rng.randrange(last + 1), width, neighbour, branching=False)

    def _tree(self, length: int, width: int, neighbour: list[int], branching: bool) -> None:
        parents = [-1, *(self._rng.randrange(i) if branching else i - 1 for i in range(1, width))]
        tokens = self._random_tokens(width)
        others = self._rng.randrange(4)
        rows = RowsBuilder()
        if others:
            rows.add_tree(neighbour, 0, self._random_tokens(others), range(-1, others - 1), self._any_adapter())
        rows.add_tree(self._table, length, tokens, parents, self._adapter)
        if others % 2:
            rows.add_chunk(neighbour, others, self._random_tokens(3), True, self._any_adapter())
        together = self._target.forward(rows.build()).logits[others : others + width]
        for node in sorted({width - 1, self._rng.randrange(width), 0}):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            for depth, step in enumerate(path):
                alone = self._row(self._table, length + depth, tokens[step])
            case = f"node {node} of a {'tree' if branching else 'chain'} of {width} at length {length}"
            self._compare(f"{case} with {others} other rows", together[node], alone)
        self._restore(length, width)

    def moves(self) -> None:
        """Compare the row after an accepted path that was moved into place, as the engine does it."""
        last = len(self._tokens) - 1
        for length in sorted({last // 2, min(BLOCK - 1, last)}):
            root, wrong, right, after = self._random_tokens(4)
            rows = RowsBuilder()
            rows.add_tree(self._table, length, [root, wrong, right], [-1, 0, 0], self._adapter)
            self._target.forward(rows.build())
            slots = [self._table[at // BLOCK] * BLOCK + at % BLOCK for at in (length + 2, length + 1)]
            self._target.move(slots[:1], slots[1:])
            moved = self._row(self._table, length + 2, after)
            for at, token in enumerate((root, right)):
                self._row(self._table, length + at, token)
            alone = self._row(self._table, length + 2, after)
            self._compare(f"the row after a moved path at length {length}", moved, alone)
            self._restore(length, 3)

    def _restore(self, length: int, width: int) -> None:
        """Recompute the keys of the history that the tree's nodes overwrote."""
        for at in range(length, min(length + width, len(self._tokens))):
            self._row(self._table, at, self._tokens[at])


class KeptProbes:
    """Cached reports of passed probes, by default in `$XDG_CACHE_HOME/kolm/probes` or under `~/.cache`.

    Write access to the folder suffices to make a start skip its probe. Receipts can still be checked.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._results = KeptResults(folder or user_cache() / "probes")

    def probing(self) -> AbstractContextManager[None]:
        """A lock for the probe, among all processes of this machine."""
        return self._results.lock()

    def find(self, target: Target) -> ProbeReport | None:
        """The report of a probe with as many threads. If there is one thread, also of a probe with a thread for each
        CPU: one takes the same steps, and meets no barrier.
        """
        found = self._results.find(target)
        if found is None and target.threads == 1:
            found = self._results.find(target, cpus())
        try:
            return ProbeReport(int(found["compared"]), (), str(found["fingerprint"])) if found else None
        except (ValueError, KeyError, TypeError):
            return None

    def keep(self, target: Target, report: ProbeReport) -> None:
        if report.passed:
            self._results.keep(target, {"compared": report.compared, "fingerprint": report.fingerprint})
