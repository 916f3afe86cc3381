"""Makes `vectors.json` of the target on a GPU: the cases of `numerics/` that a device computes at each start.

python -m tests.vectors.make_device
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.generation.target.gpu import vectors as product
from tests.numerics import vectors
from tests.numerics.vectors import Case

FILE = Path(product.__file__).with_name("vectors.json")
SECTIONS = ("elementary", "norm", "linear", "linear_int8", "rotation", "attention")
_EVERY = {"linear": 4, "attention": 3}  # of these sections, a case in so many


def computed(section: str) -> Iterator[Case]:
    """The cases of a section that the kernels compute: none with parts that only refused families have."""
    for case in vectors.read(section):
        refused = "gate", "interleaved", "temperature", "value_norms"
        if not any(case.get(name) for name in refused) and case.get("weights", {}).get("storage") != "mxfp4":
            yield case


def contents() -> bytes:
    chosen: dict[str, list[Any]] = {name: list(computed(name))[:: _EVERY.get(name, 1)] for name in SECTIONS}
    return json.dumps(chosen, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    FILE.write_bytes(contents())
