"""The probe, run at start on the loaded model: do a row's bits depend on its own tokens only, on this machine?

Nothing is assumed at run time: random widths, branches, positions, neighbours and prefill chunks are compared, bit by
bit, with the stream of one row at a time. The probe uses a free part of the target's own cache. At the end, passes are
timed: the engine's cost model decides the width of drafts by it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import llvmlite.binding as llvm

from ledger.durable_file import write_durably
from ledger.encoding.text_forms import cid_of_json
from services.generation.state_folder import one_at_a_time
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.kernels.compilation import user_cache
from services.generation.target.kernels.machine import cpus, this_machine
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.target import Target

_log = logging.getLogger(__name__)


SAMPLER = "kolm-sampler/2"


@dataclass(frozen=True, slots=True)
class NumericsProfile:
    """A profile and what the probe found. `cid` names the document; two machines with one cid promise the same bits."""

    document: dict[str, Any]
    cid: str
    report: ProbeReport

    @property
    def passed(self) -> bool:
        """Whether speculation may be served on it; off needs no proof, it is the reference."""
        return self.report.passed


def measure_profile(target: Target, kept: KeptProbes | None = None) -> NumericsProfile:
    """Probe a freshly loaded target, where no earlier result is `kept`, and describe what its bits depend on."""
    report = (kept.find(target) or _probed(target, kept)) if kept else probe(target)
    document = {"type": "kolm.profile.v2", **target.numerics, "sampler": SAMPLER, "fingerprint": report.fingerprint}
    if target.config.joined_end_ids:  # older versions went on behind these tokens: their outputs are not replayed here
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


_MOST_TOKENS = 2 * BLOCK + 12  # of the probed history: two block borders and their surroundings
_WIDTHS = (2, 3, 5, 8, 16)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """`compared` rows, the descriptions of those that differed, in the order found.

    `fingerprint` is the SHA-256 of the bare base's one-row logits over the probed history: two machines that agree on
    everything else and still differ in a bit (a library that blocks by cache size, say) differ in it.
    """

    compared: int
    failures: tuple[str, ...]
    fingerprint: str

    @property
    def passed(self) -> bool:
        return self.compared > 0 and not self.failures


def probe(target: Target, *, seed: int = 0) -> ProbeReport:
    """Compare single kernels at all sizes (`Target.probe_kernels`), then batched passes with the one-row stream, over a
    history that crosses the borders of cache blocks.

    The bare base is probed, then each loaded adapter, every time beside neighbours with others or none.

    Raises:
        CacheFull: the cache has no room for three short sequences; probe before serving.
    """
    kernels = target.probe_kernels()
    compared, failures, fingerprints = kernels.compared, list(kernels.failures), []
    for adapter in range(-1, len(target.adapters)):
        probing = _Probing(target, random.Random(seed), adapter)
        try:
            probing.chunks()
            probing.trees()
            probing.moves()
        finally:
            probing.release()
        compared += probing.compared
        failures += probing.failures
        fingerprints.append(probing.fingerprint())
    return ProbeReport(compared, tuple(failures), fingerprints[0])


class _Probing:
    def __init__(self, target: Target, rng: random.Random, adapter: int) -> None:
        self._target = target
        self._rng = rng
        self._adapter = adapter
        self._wearing = f", adapter {target.adapters[adapter].name}" if adapter >= 0 else ""
        self._tables: list[list[int]] = []
        self.compared = 0
        self.failures: list[str] = []
        length = min(_MOST_TOKENS, target.config.context_length - max(_WIDTHS) - 1)
        self._tokens = self._random_tokens(max(length, 1))
        self._table = self._new_table()
        self._alone = [self._row(self._table, i, token) for i, token in enumerate(self._tokens)]

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._target.config.vocab_size) for _ in range(count)]

    def _any_adapter(self) -> int:
        return self._rng.randrange(-1, len(self._target.adapters)) if self._target.adapters else -1

    def _new_table(self) -> list[int]:
        table: list[int] = []
        self._tables.append(table)
        self._target.blocks.extend(table, min(_MOST_TOKENS, self._target.config.context_length) + max(_WIDTHS) + 1)
        return table

    def release(self) -> None:
        for table in self._tables:
            self._target.blocks.release(table)

    def _row(self, table: list[int], length: int, token: int) -> Float32:
        rows = RowsBuilder()
        rows.add_tree(table, length, [token], [-1], self._adapter)
        row: Float32 = self._target.forward(rows.build()).logits[0]
        return row

    def _compare(self, what: str, row: Float32, alone: Float32) -> None:
        self.compared += 1
        if row.tobytes() != alone.tobytes():
            self.failures.append(f"{what}{self._wearing}: {int((row != alone).sum())} of {len(row)} logits differ")

    def fingerprint(self) -> str:
        return "sha256:" + hashlib.sha256(b"".join(row.tobytes() for row in self._alone)).hexdigest()

    def chunks(self) -> None:
        """The history again in chunks of several sizes, the logits at each chunk's end compared."""
        for size in (7, 33, len(self._tokens)):
            table, at = self._new_table(), 0
            while at < len(self._tokens):
                chunk = self._tokens[at : at + size]
                rows = RowsBuilder()
                rows.add_chunk(table, at, chunk, True, self._adapter)
                at += len(chunk)
                row = self._target.forward(rows.build()).logits[0]
                self._compare(f"prefill in chunks of {size}, position {at - 1}", row, self._alone[at - 1])
            self._target.blocks.release(table)

    def trees(self) -> None:
        """Chains and random trees of several widths at several lengths, between rows of a neighbour."""
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
        beside = self._rng.randrange(4)
        rows = RowsBuilder()
        if beside:
            rows.add_tree(neighbour, 0, self._random_tokens(beside), range(-1, beside - 1), self._any_adapter())
        rows.add_tree(self._table, length, tokens, parents, self._adapter)
        if beside % 2:
            rows.add_chunk(neighbour, beside, self._random_tokens(3), True, self._any_adapter())
        together = self._target.forward(rows.build()).logits[beside : beside + width]
        for node in sorted({width - 1, self._rng.randrange(width), 0}):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            for depth, step in enumerate(path):
                alone = self._row(self._table, length + depth, tokens[step])
            what = f"node {node} of a {'tree' if branching else 'chain'} of {width} at length {length}"
            self._compare(f"{what} beside {beside} rows", together[node], alone)
        self._restore(length, width)

    def moves(self) -> None:
        """A path accepted from a tree, moved into place as the engine does, and the next row on top of it."""
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
        """Put back the keys of the history that the tree's nodes overwrote."""
        for at in range(length, min(length + width, len(self._tokens))):
            self._row(self._table, at, self._tokens[at])


_PACKAGE = Path(__file__).parent


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/kolm/probes`, or under `~/.cache`."""
    return user_cache() / "probes"


class KeptProbes:
    """Reports of probes that passed. A folder that cannot be read or written counts as empty.

    Write access to the folder is enough to make a start skip its probe; receipts are not less checkable for it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_folder()

    def probing(self) -> AbstractContextManager[None]:
        """A block in which no other process of this machine probes."""
        return one_at_a_time(self._folder)

    def find(self, target: Target) -> ProbeReport | None:
        try:
            found = json.loads(self._path(target).read_bytes())
            if found.pop("digest") != _digest(target, found):
                raise ValueError("other members than were kept for this target")
            return ProbeReport(int(found["compared"]), (), str(found["fingerprint"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, target: Target, report: ProbeReport) -> None:
        if not report.passed:
            return
        path = self._path(target)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {"compared": report.compared, "fingerprint": report.fingerprint}
            write_durably(path, json.dumps(document | {"digest": _digest(target, document)}).encode())
        except OSError as error:
            _log.warning("cannot keep the probe's result in %s: %s", path, error)

    def _path(self, target: Target) -> Path:
        return self._folder / f"{cid_of_json(_context(target)).rpartition(':')[2]}.json"


def _digest(target: Target, document: dict[str, Any]) -> str:
    """A digest of a result and of what it is the result of, so that no other file is taken for it."""
    return cid_of_json({"circumstances": _context(target), **document})


def _context(target: Target) -> dict[str, Any]:
    """All that the outcome of a probe can depend on."""
    return {
        "base": target.base_cid,
        "adapters": [adapter.cid for adapter in target.adapters],
        "context_length": target.config.context_length,
        "target": type(target).__qualname__,
        "numerics": dict(target.numerics),
        "code": code_version(),
        "machine": machine_described(),
    }


def machine_described() -> str:
    """This one's CPU, as far as kernels and the number of threads depend on it."""
    features = llvm.get_host_cpu_features().flatten()
    return " ".join((this_machine().name, llvm.get_host_cpu_name(), str(cpus()), features))


@cache
def code_version() -> str:
    """Digest of the code that computes passes."""
    sources = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return hashlib.sha256(sources + repr(llvm.llvm_version_info).encode()).hexdigest()


_LENGTH = 3 * BLOCK  # tokens of context that the timed rows attend to
_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS, _FEWEST = 12, 5
_SECONDS = 1.2  # after which no more rounds than the fewest begin: a model of 135 M parameters takes 0.9 s on idle CPUs
_AGAIN, _WARM = 8, 0.03
"""Passes over one row before each round, and seconds after which no more begin: behind a pass over many rows the first
few take up to twice as long as those of a sequence that is decoded, whose weights come from the caches.
"""
_SEQUENCES, _KEYS = 8, 4 * BLOCK  # sequences, and cached tokens of each, that the cost of a key is measured with
_LONG = 1024  # tokens of the history that the cost of seeing a token is measured with
_PAGE = 8  # slots of a block that lie in one page of memory at most


def time_passes(target: Target, clock: Callable[[], float] = time.perf_counter) -> list[tuple[int, float]]:
    """(rows, seconds) of passes over chains of several widths.

    Each round begins as decoding goes, with passes over one row. One takes what it does as a rule: memory that others
    use too is now fast and now slow. The others are the usual multiple of what one row took in the same round, so that
    a slow moment makes no width look dear.
    """
    length = min(_LENGTH, target.config.context_length - _ROWS[-1])
    table: list[int] = []
    target.blocks.extend(table, length + _ROWS[-1])
    try:
        passes = {count: _chain(table, length, count) for count in _ROWS}
        seconds: dict[int, list[float]] = {count: [] for count in _ROWS}
        for _ in _rounds(clock):
            begin, again = clock(), _AGAIN
            while again and clock() - begin < _WARM:
                target.forward(passes[_ROWS[0]])
                again -= 1
            for count, rows in passes.items():
                start = clock()
                target.forward(rows)
                seconds[count].append(clock() - start)
        one = seconds[_ROWS[0]]
        times = {count: median(s / single for s, single in zip(seconds[count], one, strict=True)) for count in _ROWS}
        return [(count, median(one) * multiple) for count, multiple in times.items()]
    finally:
        target.blocks.release(table)


def time_keys(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token of one more sequence adds to a pass; 0 where the cache has no room to tell.

    Passes of the same rows, all of one sequence or each of its own, differ in what they fetch from memory.
    """
    length = min(_KEYS, target.config.context_length - _SEQUENCES)
    if target.blocks.free < _SEQUENCES * blocks_for(length + 1):
        return 0.0
    tables: list[list[int]] = [[] for _ in range(_SEQUENCES)]
    try:
        for table in tables:
            target.blocks.extend(table, length + 1)
            _touch(target, table)
        alone, together = _chain(tables[0], length - _SEQUENCES, _SEQUENCES), RowsBuilder()
        for table in tables:
            together.add_tree(table, length, [0], [-1])
        passes = alone, together.build()
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in _rounds(clock):
            for rows, measured in zip(passes, seconds, strict=True):
                start = clock()
                target.forward(rows)
                measured.append(clock() - start)
        return max(0.0, (median(seconds[1]) - median(seconds[0])) / ((_SEQUENCES - 1) * length))
    finally:
        for table in tables:
            target.blocks.release(table)


def time_seen(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token adds to each row that sees it; 0 where the context or the cache has no room to tell.

    A long history takes longer than a short one: the difference for eight rows, less that for one row, is their own.
    """
    long = min(_LONG, target.config.context_length, target.blocks.free * BLOCK) - _SEQUENCES
    if long < 2 * _LENGTH:
        return 0.0
    table: list[int] = []
    target.blocks.extend(table, long + _SEQUENCES)
    try:
        _touch(target, table)
        passes = {(rows, length): _chain(table, length, rows) for rows in (1, _SEQUENCES) for length in (_LENGTH, long)}
        best = dict.fromkeys(passes, float("inf"))
        for _ in _rounds(clock):
            for key, rows in passes.items():
                start = clock()
                target.forward(rows)
                best[key] = min(best[key], clock() - start)
    finally:
        target.blocks.release(table)
    more = {rows: best[rows, long] - best[rows, _LENGTH] for rows in (1, _SEQUENCES)}
    return max(0.0, (more[_SEQUENCES] - more[1]) / ((_SEQUENCES - 1) * (long - _LENGTH)))


def _rounds(clock: Callable[[], float]) -> Iterator[int]:
    """Twelve; fewer of a large model or on a busy machine, where every further one keeps the server from serving."""
    start = clock()
    for number in range(_ROUNDS):
        if number >= _FEWEST and clock() - start > _SECONDS:
            return
        yield number


def _touch(target: Target, table: list[int]) -> None:
    """Write to every page of a table's blocks. Pages that were never written to share one page of zeros, which is
    cached at once.
    """
    slots = [block * BLOCK + offset for block in table for offset in range(0, BLOCK, _PAGE)]
    target.move([table[0] * BLOCK] * len(slots), slots)


def _chain(table: list[int], length: int, count: int) -> Rows:
    rows = RowsBuilder()
    rows.add_tree(table, length, [0] * count, range(-1, count - 1))
    return rows.build()
