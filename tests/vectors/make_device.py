"""Makes `vectors.json` of the target on a GPU: the cases of `numerics/` that a device computes at each start.

python -m tests.vectors.make_device
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from services.generation.target.gpu import vectors as product
from tests.numerics import vectors
from tests.numerics.vectors import Case

FILE = Path(product.__file__).with_name("vectors.json")
SECTIONS = ("elementary", "norm", "linear", "linear_int8", "rotation", "attention")
_EVERY = {"linear": 4, "attention": 3}  # of these sections, a case in so many, and those with subnormal results


def computed(section: str) -> Iterator[Case]:
    """The cases of a section that the kernels compute: none with parts that only refused families have."""
    for case in vectors.read(section):
        refused = "gate", "interleaved", "temperature", "value_norms"
        if not any(case.get(name) for name in refused) and case.get("weights", {}).get("storage") != "mxfp4":
            yield case


def subnormal(case: Case) -> int:
    """The count of results that are subnormal."""
    values = [np.abs(vectors.values_of(expected)) for expected in case["expected"].values()]
    return sum(int(((each > 0) & (each < np.finfo(np.float32).smallest_normal)).sum()) for each in values)


def contents() -> bytes:
    chosen = {
        name: [case for n, case in enumerate(computed(name)) if n % _EVERY.get(name, 1) == 0 or subnormal(case)]
        for name in SECTIONS
    }
    return json.dumps(chosen, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    FILE.write_bytes(contents())
