"""The source of the kernels in both languages: the words of a language, `kernels.cl`, and the kinds of weights."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from ledger.durable_file import write_durably
from services.generation.target.kernels.compilation import user_cache

_log = logging.getLogger(__name__)

KERNELS = Path(__file__).with_name("kernels.cl")
STORAGES = frozenset(("float32", "float16", "bfloat16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"))
"""Kinds of packed weights that the kernels read."""
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


def source(language: str) -> str:
    """The program. `language`: OPENCL or CUDA."""
    kinds = "".join(f"LINEAR_{storage}({rows})\n" for storage in sorted(STORAGES) for rows in (1, ROWS))
    return f"{language}{KERNELS.read_text()}\n{kinds}"


def kept(circumstances: Iterable[str], make: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """Compiled code of an earlier start under the same circumstances, by default in `$XDG_CACHE_HOME/kolm/gpu`; or code
    that is made now. A file that is damaged, or cannot be read or written, counts as missing.
    """
    name = hashlib.sha256("\0".join(circumstances).encode())
    path = (folder or user_cache() / "gpu") / name.hexdigest()

    def digest(code: bytes) -> bytes:
        return hashlib.sha256(name.digest() + code).digest()

    try:
        found = path.read_bytes()
        if found[:32] == digest(found[32:]):
            return found[32:]
    except OSError:
        pass
    code = make()
    try:
        write_durably(path, digest(code) + code)
    except OSError as error:
        _log.warning("cannot keep compiled kernels in %s: %s", path, error)
    return code
