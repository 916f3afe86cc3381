"""The exponential function as kernels compute it, which no kernel gives out by itself."""

from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from services.generation.target.arrays import Float32
from services.generation.target.kernels import compilation
from services.generation.target.kernels.code import F32, I64, POINTER, Code
from services.generation.target.kernels.machine import this_machine
from services.generation.target.kernels.row_operations import decay, exponential

_FUNCTIONS = {"exponential": exponential, "decay": decay}


def exponential_by_kernel(x: Float32, name: str = "exponential") -> Float32:
    """`exponential` of each x, or `decay`, which requires x <= 0."""
    out = np.empty_like(x)
    compilation.call(_engine().get_function_address(name), x.ctypes.data, out.ctypes.data, x.size)
    return out


@cache
def _engine() -> Any:
    machine = this_machine()
    module = ir.Module("exponentials")
    module.triple = machine.triple
    for name, function in _FUNCTIONS.items():
        c = Code(module, machine, name, (POINTER, POINTER, I64), exported=True)
        source, to, count = c.arguments
        with c.loop(count) as i:
            c.store(function(c, c.load(source, c.mul(i, 4), F32)), to, c.mul(i, 4))
        c.done()
    compilation.kernels("rows")  # makes LLVM's targets known
    target = compilation._target_machine(machine, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), target)
    engine.finalize_object()
    return engine
