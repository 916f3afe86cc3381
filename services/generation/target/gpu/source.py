"""The source of the kernels in both languages: the words of a language, `kernels.cl`, and the kinds of weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

KERNELS = Path(__file__).with_name("kernels.cl")
ROWS = 4  # of a tile of a linear layer, unless a pass has one row
CONTRACTION = "#pragma OPENCL FP_CONTRACT OFF"

OPENCL = f"""{CONTRACTION}
#define KERNEL kernel
#define GLOBAL global
#define LOCAL local
#define INLINE static inline
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define LANE ((int)get_local_id(0))
#define WIDTH ((int)get_local_size(0))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
"""

# Contraction is an option of the compiler: `cuda.OPTIONS`.
CUDA = """#define KERNEL extern "C" __global__
#define GLOBAL
#define LOCAL __shared__
#define INLINE static __device__ __forceinline__
#define SYNC __syncthreads()
#define LANE ((int)threadIdx.x)
#define WIDTH ((int)blockDim.x)
#define GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)blockIdx.y)
#define as_uint __float_as_uint
#define as_float __uint_as_float
#define clz __clz
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
"""


def source(language: str, storages: Iterable[str]) -> str:
    """The program with linear layers of these storages, as `packing` names them. `language`: OPENCL or CUDA."""
    kinds = "".join(f"LINEAR_{storage}({rows})\n" for storage in sorted(storages) for rows in (1, ROWS))
    return f"{language}{KERNELS.read_text()}\n{kinds}"
