"""Experts: `docs/numerics.md`, Experts. Rows are sorted by expert, so that a pass reads each expert's matrices once.

A *pair* is a row and one of its chosen experts; pair r * chosen + j is row r's expert of rank j. In buffers that are
sorted by expert, `places` are the lines of pairs, and `starts` [experts + 1] the first lines of experts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from services.generation.target.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import FIELDS, KERNEL, PASS, WORDS, Kernel
from services.generation.target.kernels.row_operations import elementwise, exponential, scaled, sigmoid, vectors

SCORED_EPSILON = 1e-6  # added to a sum of scores
KERNELS = ("route", "gather", "experts", "mix", "gate_rows")


def build(module: ir.Module, machine: Machine) -> None:
    _route(module, machine)
    _gather(module, machine)
    _experts(module, machine)
    _mix(module, machine)
    _gate_rows(module, machine)


def _route(module: ir.Module, machine: Machine) -> None:
    """Choose the experts of all rows, compute their shares, and sort the pairs; one member does it."""
    kernel = Kernel(module, machine, "route")
    c, record, rows = kernel.code, kernel.record, kernel.passed.rows
    with c.when(c.compare(kernel.member, "==", 0)):
        with c.loop(rows) as row:
            _choose(kernel, c.at(record.logits, c.mul(row, record.logits_stride)), c.mul(row, record.chosen))
        _sort(kernel, c.mul(rows, record.chosen))
    c.done()


def _choose(kernel: Kernel, logits: Value, pair: Value) -> None:
    """Compute picks and shares of one row, whose first pair is `pair`."""
    c, record = kernel.code, kernel.record
    b = c.b
    with c.when(c.compare(record.scored, "!=", 0)), c.loop(record.experts) as expert:
        c.store(sigmoid(c, c.load(logits, c.mul(expert, 4), F32)), logits, c.mul(expert, 4))
    last, last_logit = c.variable(c.i(-1)), c.variable(c.real(float("inf")))
    with c.loop(record.chosen) as rank:
        best, best_logit = c.variable(c.i(-1)), c.variable(c.real(0.0))
        with c.loop(record.experts) as expert:
            at = c.mul(expert, 4)
            logit = b.fadd(c.load(logits, at, F32), c.load(record.bias, at, F32))
            equal = b.and_(b.fcmp_ordered("==", logit, c.get(last_logit)), c.compare(expert, ">", c.get(last)))
            free = b.or_(b.fcmp_ordered("<", logit, c.get(last_logit)), equal)
            free = b.or_(free, c.compare(rank, "==", 0))
            ahead = b.or_(c.compare(c.get(best), "<", 0), b.fcmp_ordered(">", logit, c.get(best_logit)))
            with c.when(b.and_(free, ahead)):
                c.put(expert, best)
                c.put(logit, best_logit)
        found = c.larger(c.get(best), 0)  # if all are NaN: the row's request ends with an error anyway
        c.put(found, last)
        c.put(c.get(best_logit), last_logit)
        c.store(found, record.picks, c.mul(c.add(pair, rank), 8))

    def others() -> None:
        c.either(
            c.compare(record.sigmoid, "!=", 0),
            lambda: _sigmoids(kernel, logits, pair),
            lambda: _parts(kernel, logits, pair),
        )

    c.either(c.compare(record.scored, "!=", 0), lambda: _scores(kernel, logits, pair), others)


def _sigmoids(kernel: Kernel, logits: Value, pair: Value) -> None:
    """Compute shares of a row: each is the sigmoid of its expert's logit."""
    c, record = kernel.code, kernel.record
    with c.loop(record.chosen) as rank:
        number = c.add(pair, rank)
        logit = c.load(logits, c.mul(c.word(record.picks, number), 4), F32)
        c.store(sigmoid(c, logit), record.shares, c.mul(number, 4))


def _scores(kernel: Kernel, scores: Value, pair: Value) -> None:
    """Compute shares of a row: its scores, normalised (with SCORED_EPSILON) or not."""
    c, record = kernel.code, kernel.record
    total = c.variable(c.real(0.0))

    def score(number: Value) -> Value:
        return c.load(scores, c.mul(c.word(record.picks, number), 4), F32)

    with c.loop(record.chosen) as rank:
        c.put(c.b.fadd(c.get(total), score(c.add(pair, rank))), total)
    whole = c.b.fadd(c.get(total), c.real(float(np.float32(SCORED_EPSILON))))
    divisor = c.b.select(c.compare(record.normalised, "!=", 0), whole, c.real(1.0))
    with c.loop(record.chosen) as rank:
        number = c.add(pair, rank)
        factor = c.load(record.factors, c.mul(c.word(record.picks, number), 4), F32)
        c.store(c.b.fmul(c.b.fdiv(score(number), divisor), factor), record.shares, c.mul(number, 4))


def _parts(kernel: Kernel, logits: Value, pair: Value) -> None:
    """Compute shares of a row by softmax over the chosen experts or over all."""
    c, record = kernel.code, kernel.record
    b = c.b
    top = c.load(logits, c.mul(c.word(record.picks, pair), 4), F32)
    total = c.variable(c.real(0.0))

    def weight(expert: Value) -> Value:
        return exponential(c, b.fsub(c.load(logits, c.mul(expert, 4), F32), top))

    def of_chosen() -> None:
        with c.loop(record.chosen) as rank:
            c.put(b.fadd(c.get(total), weight(c.word(record.picks, c.add(pair, rank)))), total)

    def of_all() -> None:
        with c.loop(record.experts) as expert:
            c.put(b.fadd(c.get(total), weight(expert)), total)

    c.either(c.compare(record.normalised, "!=", 0), of_chosen, of_all)
    with c.loop(record.chosen) as rank:
        number = c.add(pair, rank)
        expert = c.word(record.picks, number)
        share = b.fdiv(weight(expert), c.get(total))
        c.store(b.fmul(share, c.load(record.factors, c.mul(expert, 4), F32)), record.shares, c.mul(number, 4))


def _sort(kernel: Kernel, pairs: Value) -> None:
    """Compute starts and places by a stable counting sort."""
    c, record = kernel.code, kernel.record

    def raise_(array: Value, number: Value) -> Value:
        before = c.word(array, number)
        c.store(c.add(before, 1), array, c.mul(number, 8))
        return before

    with c.loop(c.add(record.experts, 1)) as expert:
        c.store(c.i(0), record.starts, c.mul(expert, 8))
    with c.loop(pairs) as pair:
        raise_(record.starts, c.add(c.word(record.picks, pair), 1))
    with c.loop(record.experts) as expert:
        start = c.word(record.starts, expert)
        c.store(start, record.next, c.mul(expert, 8))
        after = c.mul(c.add(expert, 1), 8)
        c.store(c.add(start, c.load(record.starts, after, I64)), record.starts, after)
    with c.loop(pairs) as pair:
        c.store(raise_(record.next, c.word(record.picks, pair)), record.places, c.mul(pair, 8))


def _gather(module: ir.Module, machine: Machine) -> None:
    """out[place of each pair] = x[its row] * its factor."""
    kernel = Kernel(module, machine, "gather")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.mul(kernel.passed.rows, record.chosen))
    with c.loop(last, first) as pair:
        x = c.at(record.x, c.mul(c.div(pair, record.chosen), record.x_stride))
        out = c.at(record.out, c.mul(c.word(record.places, pair), record.out_stride))
        factor = c.load(record.factors, c.mul(pair, 4), F32)
        elementwise(c, record.size, out, [x], partial(scaled, c, factor=factor))
    c.done()


def _experts(module: ir.Module, machine: Machine) -> None:
    """Compute each expert's linear layer for its lines: `records` has a record of `linear` for each expert.

    All members share every expert's panels, so that an operation on the same panels can follow without a barrier.
    """
    kernel = Kernel(module, machine, "experts")
    c, record = kernel.code, kernel.record
    own, passed = c.stack_alloc(8 * WORDS), c.stack_alloc(8 * len(PASS))
    address = ir.FunctionType(ir.VoidType(), (POINTER, POINTER, I64, I64)).as_pointer()
    with c.loop(record.experts) as expert:
        start, end = (c.word(record.starts, c.add(expert, n)) for n in (0, 1))
        with c.when(c.compare(start, "<", end)):
            linear = c.at(record.records, c.mul(expert, 8 * WORDS))
            for word in range(WORDS):
                c.store(c.word(linear, word), own, 8 * word)
            for name in ("x", "y"):
                place = 8 * (FIELDS["linear"].index(name) + 2)
                lines = c.mul(start, getattr(record, f"{name}_stride"))
                c.store(c.add(c.load(own, place, I64), lines), own, place)
            c.store(c.sub(end, start), passed, 8 * PASS.index("rows"))
            function = c.b.inttoptr(c.word(linear, KERNEL), address)
            c.b.call(function, (own, passed, kernel.member, kernel.members))
    c.done()


def _mix(module: ir.Module, machine: Machine) -> None:
    """out[row] = sum by rank of share * y[place], by fma from +0."""
    kernel = Kernel(module, machine, "mix")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        out, pair = c.at(record.out, c.mul(row, record.out_stride)), c.mul(row, record.chosen)
        vectors(c, record.size, lambda at, lanes: c.store(_sum(c, record, pair, at, lanes), out, at))
    c.done()


def _sum(c: Code, record: Any, pair: Value, at: Value, lanes: int) -> Value:
    total = c.variable(c.vector(F32, 0.0, lanes))
    with c.loop(record.chosen) as rank:
        number = c.add(pair, rank)
        line = c.at(record.y, c.mul(c.word(record.places, number), record.y_stride))
        share = c.repeated(c.load(record.shares, c.mul(number, 4), F32), lanes)
        c.put(c.fma(share, c.load(line, at, F32, lanes), c.get(total)), total)
    return c.get(total)


def _gate_rows(module: ir.Module, machine: Machine) -> None:
    """x[row] *= the sigmoid of the row's gate."""
    kernel = Kernel(module, machine, "gate_rows")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(kernel.passed.rows)
    with c.loop(last, first) as row:
        x = c.at(record.x, c.mul(row, record.x_stride))
        gate = sigmoid(c, c.load(c.at(record.gates, c.mul(row, record.gates_stride)), 0, F32))
        elementwise(c, record.size, x, [x], partial(scaled, c, factor=gate))
    c.done()
