"""The probe, run at start on the loaded model: it checks that a row's bits depend only on its own tokens.

Random widths, branches, positions, neighbours and prefill chunks are compared, bit by bit, with passes over one row at
a time, in one layer of each kind; the whole model computes one history twice. The probe uses a free part of the
target's own cache. This file also times passes, for the engine's cost model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

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
_PACKAGE = Path(__file__).parent
_MOST_TOKENS = 2 * BLOCK + 12  # of the probed history: two block borders and their surroundings
_WIDTHS = (2, 3, 5, 8, 16)
_TURNS = (1, *_WIDTHS)  # rows of the whole model's passes

_LENGTH = 3 * BLOCK  # tokens of context in timed passes
_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS, _FEWEST = 12, 5
_SECONDS = 1.2  # after which only the fewest rounds are completed: a model of 135 M parameters takes 0.9 s on idle CPUs
_AGAIN, _WARM = 8, 0.3
"""Passes over one row before each round, and a time limit for them in seconds: after a pass over many rows, or a pause,
passes are slower or faster than in steady decoding for a while, by what is in the caches and by the memory's speed.
"""
_STEADY, _SETTLING = 0.03, 3.0  # a change of time that is none, and a limit in seconds until there is none
_CHANGED = 1.1  # ratio of passes over one row in two rounds from which on the memory's speed has changed
_SEQUENCES, _KEYS = 8, 4 * BLOCK  # sequences, and cached tokens of each, with which the cost of a key is measured
_LONG = 1024  # tokens of the history with which the cost of a visible token is measured
_PAGE = 8  # at most this many slots of a block share a memory page

_Key = TypeVar("_Key")


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
    passes over one row (`Target.abridged`); and passes of the whole model of several widths with each other, for a
    history that crosses the borders of cache blocks.

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
        """Compute the history in passes of 1, 2, 3, 5, 8 and 16 rows in turn, and a second time in passes of all these
        rows together, beside a neighbour's. Compare all rows; returns their fingerprint.
        """
        return _fingerprint(self._in_widths())

    def _in_widths(self) -> Iterator[Float32]:
        second, neighbour = self._new_table(), self._new_table()
        for begin in range(0, len(self._tokens), sum(_TURNS)):
            stretch = self._tokens[begin : begin + sum(_TURNS)]
            beside = RowsBuilder()
            beside.add_chunk(neighbour, 0, self._random_tokens(3), False, self._any_adapter())
            together = self._chain(beside, second, begin, stretch)
            cuts = [cut for cut in accumulate(_TURNS, initial=0) if cut < len(stretch)]
            for first, end in pairwise([*cuts, len(stretch)]):
                rows = self._chain(RowsBuilder(), self._table, begin + first, stretch[first:end])
                for at, row in enumerate(rows, first):
                    self._compare(f"position {begin + at} in a pass of {len(stretch)} rows", together[at], row)
                    yield row

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

    A folder that cannot be read or written counts as empty. Write access to the folder suffices to make a start skip
    its probe. Receipts can still be checked.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or user_cache() / "probes"

    def probing(self) -> AbstractContextManager[None]:
        """A lock for the probe, among all processes of this machine."""
        return one_at_a_time(self._folder)

    def find(self, target: Target) -> ProbeReport | None:
        try:
            found = json.loads(self._path(target).read_bytes())
            if found.pop("digest") != _digest(target, found):
                raise ValueError("the digest differs")
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
            _log.warning("cannot write the probe's result to %s: %s", path, error)

    def _path(self, target: Target) -> Path:
        return self._folder / f"{cid_of_json(_context(target)).rpartition(':')[2]}.json"


def _digest(target: Target, document: dict[str, Any]) -> str:
    """A digest of a result and its circumstances, so that no other file is mistaken for it."""
    return cid_of_json({"circumstances": _context(target), **document})


def _context(target: Target) -> dict[str, Any]:
    """Everything on which the outcome of a probe can depend."""
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
    """The properties of this CPU on which kernels and the number of threads depend."""
    features = llvm.get_host_cpu_features().flatten()
    return " ".join((this_machine().name, llvm.get_host_cpu_name(), str(cpus()), features))


@cache
def code_version() -> str:
    """Digest of this package's code and LLVM's version."""
    sources = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return hashlib.sha256(sources + repr(llvm.llvm_version_info).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of passes in steady state: (rows, seconds) by ascending rows, and of one row in each round."""

    samples: tuple[tuple[int, float], ...]
    rounds: tuple[float, ...]

    @property
    def changed(self) -> bool:
        """Whether the memory's speed changed between rounds, or another program used the machine."""
        return max(self.rounds) > _CHANGED * min(self.rounds)


def time_passes(target: Target, clock: Callable[[], float] = time.perf_counter) -> PassTimes:
    """Times of passes over chains of several widths, after passes over one row until their time no longer drifts.

    Each round begins with passes over one row, as in decoding; the median of the rounds is the result for one row.
    Other widths are the median multiple of one row in the same round, so that variations of shared memory's speed
    cancel.
    """
    length = min(_LENGTH, target.config.context_length - _ROWS[-1])
    table: list[int] = []
    target.blocks.extend(table, length + _ROWS[-1])
    try:
        passes = {count: _chain(table, length, count) for count in _ROWS}
        single, one = passes.pop(_ROWS[0]), list[float]()
        multiples: dict[int, list[float]] = {count: [] for count in passes}
        _settle(target, single, clock)
        for _ in _rounds(clock):
            one.append(_repeated(target, single, clock))
            for count, rows in passes.items():
                multiples[count].append(_timed(target, rows, clock) / one[-1])
        alone = median(one)
        samples = ((count, median(each) * alone) for count, each in multiples.items())
        return PassTimes(((_ROWS[0], alone), *samples), tuple(one))
    finally:
        target.blocks.release(table)


def time_keys(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token of one more sequence adds to a pass; 0 if the cache is too small to measure it.

    Compares rows of one sequence with rows of a sequence each, which fetch more keys from memory.
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
        seconds = _seconds(target, {1: alone, _SEQUENCES: together.build()}, clock)
        return max(0.0, (median(seconds[_SEQUENCES]) - median(seconds[1])) / ((_SEQUENCES - 1) * length))
    finally:
        for table in tables:
            target.blocks.release(table)


def time_seen(target: Target, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a cached token adds to each row that sees it; 0 if the context or the cache is too small.

    Compares a long history with a short one, for eight rows and for one row.
    """
    long = min(_LONG, target.config.context_length, target.blocks.free * BLOCK) - _SEQUENCES
    if long < 2 * _LENGTH:
        return 0.0
    table: list[int] = []
    target.blocks.extend(table, long + _SEQUENCES)
    try:
        _touch(target, table)
        passes = {(rows, length): _chain(table, length, rows) for rows in (1, _SEQUENCES) for length in (_LENGTH, long)}
        best = {key: min(seconds) for key, seconds in _seconds(target, passes, clock).items()}
    finally:
        target.blocks.release(table)
    more = {rows: best[rows, long] - best[rows, _LENGTH] for rows in (1, _SEQUENCES)}
    return max(0.0, (more[_SEQUENCES] - more[1]) / ((_SEQUENCES - 1) * (long - _LENGTH)))


def _seconds(target: Target, passes: Mapping[_Key, Rows], clock: Callable[[], float]) -> dict[_Key, list[float]]:
    """Seconds of each pass in each round."""
    seconds: dict[_Key, list[float]] = {key: [] for key in passes}
    for _ in _rounds(clock):
        for key, rows in passes.items():
            seconds[key].append(_timed(target, rows, clock))
    return seconds


def _settle(target: Target, rows: Rows, clock: Callable[[], float]) -> None:
    """Compute a pass until its time no longer drifts, for at most about `_SETTLING` seconds."""
    start, before = clock(), 0.0
    while clock() - start < _SETTLING:
        now = _repeated(target, rows, clock)
        if abs(now - before) <= _STEADY * now:
            return
        before = now


def _repeated(target: Target, rows: Rows, clock: Callable[[], float]) -> float:
    """The median seconds of the later half of some equal passes."""
    start, seconds = clock(), list[float]()
    while len(seconds) < _AGAIN and clock() - start < _WARM:
        seconds.append(_timed(target, rows, clock))
    return median(seconds[len(seconds) // 2 :])


def _timed(target: Target, rows: Rows, clock: Callable[[], float]) -> float:
    start = clock()
    target.forward(rows)
    return clock() - start


def _rounds(clock: Callable[[], float]) -> Iterator[int]:
    """Twelve rounds, but at most about `_SECONDS` and at least five: the server waits for them."""
    start = clock()
    for number in range(_ROUNDS):
        if number >= _FEWEST and clock() - start > _SECONDS:
            return
        yield number


def _touch(target: Target, table: list[int]) -> None:
    """Write to every page of a table's blocks: unwritten pages share one page of zeros, which is always cached."""
    slots = [block * BLOCK + offset for block in table for offset in range(0, BLOCK, _PAGE)]
    target.move([table[0] * BLOCK] * len(slots), slots)


def _chain(table: list[int], length: int, count: int) -> Rows:
    rows = RowsBuilder()
    rows.add_tree(table, length, [0] * count, range(-1, count - 1))
    return rows.build()
