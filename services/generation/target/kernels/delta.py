"""The gated delta rule (Yang et al. 2024) and Mamba-2 (Dao and Gu 2024) over a row's own path: `docs/numerics.md`,
States.

The inputs of a state are in the paged cache, a line for each token, in place of values. A pass folds *steps*: its own
rows, and before them cached tokens that are not yet in the state from which it starts. `states.py` plans the steps,
their order, and the states before and after each; no bit depends on that plan.
"""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.kernels.attention.form import Lines
from services.generation.target.kernels.code import F32, I64, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel
from services.generation.target.kernels.row_operations import (
    elementwise,
    exponential,
    normalise,
    scaled,
    sigmoid,
    silu,
    softplus,
    sum_of_squares,
    vectors,
)
from services.generation.target.sizes import MOST_TAPS, STATE_LANES

KERNELS = ("fold", "normed_gate", "head_gate")
PARTS = 4  # partial sums over a state's rows: part of the definition
LEAST = 1e-6  # added to the sum of a head's squares
_BYTES = 4 * STATE_LANES


def build(module: ir.Module, machine: Machine) -> None:
    _fold(module, machine)
    _normed_gate(module, machine)
    _head_gate(module, machine)


def build_inputs(module: ir.Module, machine: Machine, cached: Lines) -> None:
    """Add `fold_inputs`. A row's line is q, k, v, z, b, a, of which all but z are stored in the cache. Then `folded`
    gets for every step: the convolutions of q, k and v, with heads of q and k of length 1, and a decay and a strength
    of each value head. Lines of Mamba-2 are z, v, k, q, a, and heads are not normalised.

    values [slots][padded], weight [taps][convolved], folded [steps][q, k, v, decays, strengths]; `heads_at` and
    `values_at` are columns of the convolution. A member computes some heads of all rows and steps, and reads nothing
    that another member writes.
    """
    kernel = Kernel(module, machine, "fold_inputs")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    keys, values = c.mul(record.key_heads, record.key_dim), c.mul(record.value_heads, record.value_dim)
    convolved = c.add(c.mul(keys, 2), values)
    both, line = c.mul(record.key_heads, 2), c.mul(record.padded, cached.size)
    heads = c.add(both, record.value_heads)
    first, last = kernel.share(c.add(heads, 1))

    def stored(column: Value, size: Value, source: Value) -> None:
        """Store columns [source, source + size) of every row in the cache, from `column` on."""
        with c.loop(passed.rows) as row:
            to = c.at(record.values, c.add(c.mul(c.index(passed.slots, row), line), c.mul(column, cached.size)))
            x = c.at(c.at(record.qkv, c.mul(row, record.qkv_stride)), c.mul(source, 4))

            def each(at: Value, lanes: int) -> None:
                cached.store(c, c.load(x, at, F32, lanes), to, c.div(c.mul(at, cached.size), 4))

            vectors(c, size, each)

    with c.loop(last, first) as head:

        def convolve() -> None:
            is_value = c.compare(head, ">=", both)
            value = c.add(c.mul(c.sub(head, both), record.value_dim), record.values_at)
            column = c.b.select(is_value, value, c.add(c.mul(head, record.key_dim), record.heads_at))
            size = c.b.select(is_value, record.value_dim, record.key_dim)
            stored(column, size, c.add(column, record.first))
            factor = c.b.select(c.compare(head, "<", record.key_heads), record.factor, c.real(1.0))
            with c.loop(passed.steps) as step:
                to = c.at(record.folded, c.add(c.mul(step, record.folded_stride), c.mul(column, 4)))
                _convolved(kernel, cached, step, column, size, convolved, to)
                with c.when(c.compare(head, "<", c.mul(both, record.delta))):
                    inverse = c.b.fadd(sum_of_squares(c, to, size), c.real(LEAST))
                    inverse = c.b.fdiv(c.real(1.0), c.sqrt(inverse))
                    elementwise(c, size, to, [to], lambda x: scaled(c, scaled(c, x, inverse), factor))

        def gates() -> None:
            before = c.mul(record.value_heads, record.delta)  # columns of b
            stored(convolved, c.add(before, record.value_heads), c.add(convolved, values))
            own = c.mul(convolved, cached.size)
            with c.loop(passed.steps) as step:
                slot = c.index(passed.step_taps, c.add(c.mul(step, record.taps), c.sub(record.taps, 1)))
                strengths = c.at(record.values, c.add(c.mul(slot, line), own))
                decays = c.at(strengths, c.mul(before, cached.size))
                to = c.at(record.folded, c.add(c.mul(step, record.folded_stride), c.mul(convolved, 4)))
                strength_to = c.at(to, c.mul(record.value_heads, 4))

                def gate(at: Value, lanes: int) -> None:
                    place = c.div(c.mul(at, cached.size), 4)
                    time = c.b.fadd(cached.load(c, decays, place, lanes), c.load(record.shifts, at, F32, lanes))
                    time = softplus(c, time)
                    c.store(exponential(c, c.b.fneg(c.b.fmul(c.load(record.rates, at, F32, lanes), time))), to, at)
                    c.either(
                        c.compare(record.delta, "!=", 0),
                        lambda: c.store(sigmoid(c, cached.load(c, strengths, place, lanes)), strength_to, at),
                        lambda: c.store(time, strength_to, at),
                    )

                vectors(c, record.value_heads, gate)

        c.either(c.compare(head, "<", heads), convolve, gates)
    c.done()


def _convolved(
    kernel: Kernel, cached: Lines, step: Value, column: Value, size: Value, channels: Value, to: Value
) -> None:
    """to = silu of the convolution of columns over a step's token and the tokens before it on its path."""
    c, record, passed = kernel.code, kernel.record, kernel.passed
    places = c.stack_alloc(8 * MOST_TAPS)
    taps = c.at(passed.step_taps, c.mul(c.mul(step, record.taps), 4))
    hidden = c.variable(c.i(0))  # taps before the first position
    with c.loop(record.taps) as tap:
        slot = c.index(taps, tap)
        c.store(c.mul(c.add(c.mul(slot, record.padded), column), cached.size), places, c.mul(tap, 8))
        c.put(c.add(c.get(hidden), c.b.zext(c.compare(slot, "<", 0), I64)), hidden)
    seen = c.get(hidden)

    def each(at: Value, lanes: int) -> None:
        total = c.variable(c.load(c.at(record.bias, c.mul(column, 4)), at, F32, lanes))
        with c.loop(record.taps, seen) as tap:
            weight = c.load(c.at(record.weight, c.mul(c.add(c.mul(tap, channels), column), 4)), at, F32, lanes)
            place = c.at(record.values, c.load(places, c.mul(tap, 8), I64))
            x = cached.load(c, place, c.div(c.mul(at, cached.size), 4), lanes)
            c.put(c.fma(weight, x, c.get(total)), total)
        c.store(silu(c, c.get(total)), to, at)

    vectors(c, size, each)


def _fold(module: ir.Module, machine: Machine) -> None:
    """Compute the states of all steps, in order, and for steps that are rows the output for the query, in `mixed`.

    states [state][value heads][value columns / STATE_LANES][key size][STATE_LANES]; states from `kept` on are in a
    member's scratch. State 0 is zero. A member computes some columns of all steps.
    """
    kernel = Kernel(module, machine, "fold")
    c, record, passed = kernel.code, kernel.record, kernel.passed
    b = c.b
    panels = c.div(record.value_dim, STATE_LANES)
    first, last = kernel.share(c.mul(record.value_heads, panels))
    keys = c.mul(record.key_heads, record.key_dim)
    share, piece = c.div(record.value_heads, record.key_heads), c.mul(record.key_dim, _BYTES)
    decays = c.add(c.mul(keys, 2), c.mul(record.value_heads, record.value_dim))
    scratch = kernel.scratch()
    with c.loop(last, first) as unit, c.loop(passed.steps) as step:
        head = c.div(unit, panels)

        def state(number: Value) -> Value:
            kept = c.at(record.states, c.add(c.mul(number, record.state_size), c.mul(unit, piece)))
            passing = c.at(scratch, c.mul(c.sub(number, record.kept), piece))
            return b.select(c.compare(number, "<", record.kept), kept, passing)

        line = c.at(record.folded, c.mul(step, record.folded_stride))
        tiled = c.compare(record.tiled, "!=", 0)
        own = c.mul(b.select(tiled, c.rem(head, record.key_heads), c.div(head, share)), record.key_dim)
        query, key = (c.at(line, c.mul(c.add(own, first), 4)) for first in (record.queries_at, record.keys_at))
        value = c.load(c.at(line, c.mul(record.values_at, 4)), c.mul(unit, _BYTES), F32, STATE_LANES)
        decay = c.at(c.at(line, c.mul(decays, 4)), c.mul(head, 4))
        strength = c.repeated(c.load(c.at(decay, c.mul(record.value_heads, 4)), 0, F32), STATE_LANES)
        decay = c.repeated(c.load(decay, 0, F32), STATE_LANES)
        before, after = (state(c.index(numbers, step)) for numbers in (passed.step_sources, passed.step_targets))

        def scalar(vector: Value, i: Value, part: int) -> Value:
            return c.repeated(c.load(vector, c.mul(c.add(i, part), 4), F32), STATE_LANES)

        changed = c.variable(value)
        with c.when(c.compare(record.delta, "!=", 0)):
            known = [c.variable(c.vector(F32, 0.0, STATE_LANES)) for _ in range(PARTS)]
            with c.loop(record.key_dim, step=PARTS) as i:
                for part, total in enumerate(known):
                    s = c.load(before, c.mul(c.add(i, part), _BYTES), F32, STATE_LANES)
                    c.put(c.fma(s, scalar(key, i, part), c.get(total)), total)
            c.put(b.fsub(value, b.fmul(decay, _together(c, known))), changed)
        change = b.fmul(c.get(changed), strength)
        found = [c.variable(c.vector(F32, 0.0, STATE_LANES)) for _ in range(PARTS)]
        with c.loop(record.key_dim, step=PARTS) as i:
            for part, total in enumerate(found):
                place = c.mul(c.add(i, part), _BYTES)
                s = b.fmul(decay, c.load(before, place, F32, STATE_LANES))
                s = c.fma(scalar(key, i, part), change, s)
                c.store(s, after, place)
                c.put(c.fma(s, scalar(query, i, part), c.get(total)), total)
        row = c.index(passed.step_rows, step)
        with c.when(c.compare(row, ">=", 0)):
            out = c.variable(_together(c, found))
            with c.when(c.compare(record.delta, "==", 0)):
                skip = c.load(record.skips, c.mul(head, 4), F32)
                c.put(c.fma(c.repeated(skip, STATE_LANES), value, c.get(out)), out)
            c.store(c.get(out), c.at(record.mixed, c.mul(row, record.mixed_stride)), c.mul(unit, _BYTES))
    c.done()


def _together(c: Code, parts: list[Value]) -> Value:
    """The sum of the partial sums of each column."""
    sums = [c.get(part) for part in parts]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [c.b.fadd(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def _normed_gate(module: ir.Module, machine: Machine) -> None:
    """mixed = norm(mixed) * silu(gate) for each head; gates are in `qkv` from column `first` on. In Mamba-2
    norm(mixed * silu(gate)), with weights for each head.
    """
    kernel = Kernel(module, machine, "normed_gate")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.mul(kernel.passed.rows, record.heads))
    with c.loop(last, first) as unit:
        row, column = c.div(unit, record.heads), c.mul(c.rem(unit, record.heads), record.dim)
        mixed = c.at(record.mixed, c.add(c.mul(row, record.mixed_stride), c.mul(column, 4)))
        gate = c.at(record.qkv, c.add(c.mul(row, record.qkv_stride), c.mul(c.add(column, record.first), 4)))

        def gated() -> None:
            elementwise(c, record.dim, mixed, (mixed, gate), lambda x, gate: c.b.fmul(x, silu(c, gate)))

        def norm_first() -> None:
            normalise(c, mixed, mixed, record.weight, record.dim, record.epsilon)
            gated()

        def gate_first() -> None:
            gated()
            normalise(c, mixed, mixed, c.at(record.weight, c.mul(column, 4)), record.dim, record.epsilon)

        c.either(c.compare(record.delta, "!=", 0), norm_first, gate_first)
    c.done()


def _head_gate(module: ir.Module, machine: Machine) -> None:
    """mixed *= sigmoid of each head's gate, which follows its query in `qkv`."""
    kernel = Kernel(module, machine, "head_gate")
    c, record = kernel.code, kernel.record
    first, last = kernel.share(c.mul(kernel.passed.rows, record.heads))
    with c.loop(last, first) as unit:
        row, column = c.div(unit, record.heads), c.mul(c.rem(unit, record.heads), record.dim)
        mixed = c.at(record.mixed, c.add(c.mul(row, record.mixed_stride), c.mul(column, 4)))
        place = c.mul(c.add(c.mul(column, 2), record.dim), 4)
        gate = c.at(record.qkv, c.add(c.mul(row, record.qkv_stride), place))
        elementwise(c, record.dim, mixed, (mixed, gate), lambda x, gate: c.b.fmul(x, sigmoid(c, gate)))
    c.done()
