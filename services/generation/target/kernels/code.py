"""A builder of LLVM IR with the operations of kernels: addresses, vectors, loops, branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from llvmlite import ir

from services.generation.target.kernels.machine import Machine

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
POINTER = ir.PointerType()
_FIRST = ir.Constant(I32, 0)
_BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, F32: 4}
Value = Any
"""An SSA value of llvmlite, which has no type annotations."""


@dataclass(slots=True)
class Changing:
    """A variable in code without branches, which takes no instruction: `Code.put` changes its value, an SSA value."""

    value: Value

    @property
    def allocated_type(self) -> Any:
        return self.value.type


class Code:
    """A function under construction. Integers are i64, addresses are counted in bytes.

    LLVM may not change a float operation: no fast-math flag is set, so operations are IEEE 754's in the written order.
    """

    def __init__(
        self, module: ir.Module, machine: Machine, name: str, arguments: Sequence[Any], *, exported: bool = False
    ) -> None:
        self.module, self.machine = module, machine
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), tuple(arguments)), name)
        if not exported:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
        if machine.lanes > 1:
            # Without it, a vector on the stack would cross two cache lines or not by the depth of the call, and a pass
            # over one row could take half as long again.
            self.function.attributes.alignstack = 64
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.arguments = self.function.args

    # Values

    def i(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def whole(self, value: Value | int) -> Value:
        return self.i(value) if isinstance(value, int) else value

    def real(self, value: float) -> Value:
        return ir.Constant(F32, value)

    def add(self, a: Value | int, b: Value | int) -> Value:
        return self.b.add(self.whole(a), self.whole(b))

    def sub(self, a: Value | int, b: Value | int) -> Value:
        return self.b.sub(self.whole(a), self.whole(b))

    def mul(self, a: Value | int, b: Value | int) -> Value:
        return self.b.mul(self.whole(a), self.whole(b))

    def div(self, a: Value | int, b: Value | int) -> Value:
        return self.b.sdiv(self.whole(a), self.whole(b))

    def rem(self, a: Value | int, b: Value | int) -> Value:
        return self.b.srem(self.whole(a), self.whole(b))

    def ceil_div(self, a: Value | int, b: int) -> Value:
        return self.div(self.add(a, b - 1), b)

    def even(self, count: Value, most: int) -> Value:
        """The size of nearly equal parts of `count`, at most `most`."""
        parts = self.ceil_div(count, most)
        return self.div(self.sub(self.add(count, parts), 1), parts)

    def compare(self, a: Value | int, how: str, b: Value | int) -> Value:
        return self.b.icmp_signed(how, self.whole(a), self.whole(b))

    def smaller(self, a: Value | int, b: Value | int) -> Value:
        a, b = self.whole(a), self.whole(b)
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def larger(self, a: Value | int, b: Value | int) -> Value:
        a, b = self.whole(a), self.whole(b)
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    # Memory

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """The address `offset` bytes after `pointer`."""
        return pointer if offset == 0 else self.b.gep(pointer, [self.whole(offset)], source_etype=I8)

    def load(self, pointer: Value, offset: Value | int, kind: Any, lanes: int = 1, align: int = 0) -> Value:
        typ = ir.VectorType(kind, lanes) if lanes > 1 else kind
        return self.b.load(self.at(pointer, offset), typ=typ, align=align or _BYTES.get(kind, 8))

    def store(self, value: Value, pointer: Value, offset: Value | int, align: int = 0) -> None:
        kind = value.type.element if isinstance(value.type, ir.VectorType) else value.type
        self.b.store(value, self.at(pointer, offset), align=align or _BYTES.get(kind, 8))

    def word(self, pointer: Value, number: Value | int) -> Value:
        """The i64 at index `number`."""
        return self.load(pointer, self.mul(number, 8) if not isinstance(number, int) else 8 * number, I64)

    def address(self, pointer: Value, number: int) -> Value:
        return self.load(pointer, 8 * number, POINTER)

    def index(self, pointer: Value, number: Value | int) -> Value:
        """The int32 at index `number`, as i64."""
        return self.b.sext(self.load(pointer, self.mul(number, 4), I32), I64)

    def stack_alloc(self, size: int) -> Value:
        """`size` bytes of the stack, aligned to 64."""
        with self.b.goto_entry_block():
            place = self.b.alloca(ir.ArrayType(I8, size))
            place.align = 64
            return self.b.inttoptr(self.b.ptrtoint(place, I64), POINTER)

    def variable(self, initial: Value) -> Value:
        """A variable that LLVM keeps in a register."""
        with self.b.goto_entry_block():
            place = self.b.alloca(initial.type)
        self.b.store(initial, place)
        return place

    @contextmanager
    def straight(self, variables: Sequence[Sequence[Value]]) -> Iterator[list[list[Changing]]]:
        """Variables in a block of code without branches."""
        changing = [[Changing(self.get(variable)) for variable in each] for each in variables]
        yield changing
        for after, before in zip(chain.from_iterable(changing), chain.from_iterable(variables), strict=True):
            self.put(after.value, before)

    def get(self, variable: Value) -> Value:
        return variable.value if isinstance(variable, Changing) else self.b.load(variable, typ=variable.allocated_type)

    def put(self, value: Value, variable: Value) -> None:
        if isinstance(variable, Changing):
            variable.value = value
        else:
            self.b.store(value, variable)

    def prefetch(self, pointer: Value, offset: Value | int, locality: int = 3) -> None:
        numbers = (ir.Constant(I32, 0), ir.Constant(I32, locality), ir.Constant(I32, 1))
        kinds = (POINTER, I32, I32, I32)
        self.b.call(self.external("llvm.prefetch.p0", ir.VoidType(), kinds), (self.at(pointer, offset), *numbers))

    # Vectors

    def vector(self, kind: Any, value: Any, lanes: int) -> Value:
        """A constant in every lane, or the constants of a sequence."""
        each = list(value) if isinstance(value, Sequence) else [value] * lanes
        return ir.Constant(ir.VectorType(kind, lanes), each) if lanes > 1 else ir.Constant(kind, each[0])

    def repeated(self, value: Value, lanes: int) -> Value:
        """A value in every lane."""
        if lanes == 1:
            return value
        nothing = _undefined(value.type, lanes)
        return self.b.shuffle_vector(self.b.insert_element(nothing, value, _FIRST), nothing, _all_first(lanes))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c with one rounding."""
        return self.intrinsic("llvm.fma", a.type, a, b, c)

    def sqrt(self, a: Value) -> Value:
        return self.intrinsic("llvm.sqrt", a.type, a)

    def intrinsic(self, name: str, kind: Any, *arguments: Value) -> Value:
        """An LLVM intrinsic whose arguments and result have the same type."""
        lanes, element = (kind.count, kind.element) if isinstance(kind, ir.VectorType) else (0, kind)
        suffix = f"f{32 if element == F32 else 16}" if element in (F32, F16) else f"i{element.width}"
        full = f"{name}.v{lanes}{suffix}" if lanes else f"{name}.{suffix}"
        return self.b.call(self.external(full, kind, [a.type for a in arguments]), arguments)

    def folded(self, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
        """The reduction of all lanes: lane l is joined with lane l + n/2, then so are halves of that, down to one."""
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            low, high = (ir.Constant(ir.VectorType(I32, lanes), list(range(at, at + lanes))) for at in (0, lanes))
            nothing = ir.Constant(vector.type, ir.Undefined)
            if lanes == 1:
                parts = [self.b.extract_element(vector, ir.Constant(I32, at)) for at in (0, 1)]
            else:
                parts = [self.b.shuffle_vector(vector, nothing, mask) for mask in (low, high)]
            vector = join(*parts)
        return vector

    # Control

    @contextmanager
    def loop(self, count: Value | int, start: Value | int = 0, step: Value | int = 1) -> Iterator[Value]:
        """`for index in range(start, count, step)`, step > 0."""
        b, count, before = self.b, self.whole(count), self.b.block
        head, body, end = (self.function.append_basic_block(name) for name in ("head", "body", "end"))
        start = self.whole(start)
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", index, count), body, end)
        b.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, step), b.block)
        b.branch(head)
        b.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.b.if_then(condition):
            yield

    def either(self, condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        with self.b.if_else(condition) as (then, otherwise):
            with then:
                yes()
            with otherwise:
                no()

    def choose(self, value: Value, cases: Mapping[int, Callable[[], object]]) -> None:
        """Execute the case of a value, or nothing for other values."""
        end = self.function.append_basic_block("chosen")
        switch = self.b.switch(value, end)
        for number, case in cases.items():
            block = self.function.append_basic_block(f"case_{number}")
            switch.add_case(self.i(number), block)
            self.b.position_at_end(block)
            case()
            self.b.branch(end)
        self.b.position_at_end(end)

    def call(self, function: Any, *arguments: Value) -> Value:
        return self.b.call(function, arguments)

    def external(self, name: str, result: Any, kinds: Sequence[Any]) -> Any:
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, tuple(kinds)), name)

    def done(self) -> Any:
        self.b.ret_void()
        return self.function

    def keep_order(self, sums: Sequence[Value]) -> None:
        """Forbid LLVM to move reads of memory and changes of the variables `sums` across this point. No instruction.

        Otherwise LLVM's scheduler would load all of an unrolled loop first and spill registers to the stack, which
        makes tiles three times as slow.
        """
        kinds = [variable.allocated_type for variable in sums]
        result = ir.LiteralStructType(kinds) if len(kinds) > 1 else kinds[0]
        outputs = [f"={self.machine.letter}"] * len(kinds)
        constraint = ",".join([*outputs, *map(str, range(len(kinds))), "~{memory}"])
        nothing = ir.InlineAsm(ir.FunctionType(result, kinds), "", constraint, side_effect=True)
        values = self.b.call(nothing, [self.get(variable) for variable in sums])
        for number, variable in enumerate(sums):
            self.put(self.b.extract_value(values, number) if len(kinds) > 1 else values, variable)


@cache
def _undefined(kind: Any, lanes: int) -> Value:
    return ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)


@cache
def _all_first(lanes: int) -> Value:
    return ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
