"""Compares this machine's kernels with the vectors and the reference, and prints digests of models' logits.

    python -m tests.numerics.digest <storage>,… <model directory> …

compares kernels for weights in these storages, and prints the instruction set and SHA-256 of the logits of each model;
without a model, products of whole numbers alone. KOLM_INSTRUCTION_SET chooses the instruction set of a process.
"""

# ruff: noqa: E402 - importing torch takes most of the time, and nothing here needs it
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np

from services.generation.target.without_torch import hide_torch

hide_torch()

from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.machine import this_machine
from services.generation.target.kernels.storages import GROUP, packed_as
from services.generation.target.weights import open_weights
from tests.fakes.rows import tree_rows
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.exponential import exponential_by_kernel
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.model import by_kernels, check_model, digest
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.vectors import SECTIONS, check, random_rows, read, values_of

_LENGTH = 200
_ROWS = (*range(1, 19), 24, 31, 32, 33, 47)


def logits_digest(directory: Path) -> str:
    """A digest of a text's logits in one pass; threads, of which there are two, change nothing."""
    target = CpuTarget(read_config(directory), open_weights(directory), 8, "", "", threads=2)
    table: list[int] = []
    target.blocks.extend(table, _LENGTH)
    tokens = [(7 * i * i + 3 * i) % target.config.vocab_size for i in range(_LENGTH)]
    return digest(target.forward(tree_rows(table, 0, tokens)).logits)


def check_vectors(storages: Collection[str]) -> None:
    """Raise AssertionError if this process's kernels differ from the vectors, for layers in these storages, and for the
    model if its storages are among them.
    """
    for section in SECTIONS:
        for turns in (1, 7, 29):
            check(section, KernelArithmetic(), turns, storages)
        check(section, KernelArithmetic(members=3), 1, storages)
    case = read("elementary")[0]
    assert_same_bits(exponential_by_kernel(values_of(case["x"])), values_of(case["exp"]))
    model = read("model")
    if {tensor["storage"] for tensor in model["weights"].values()} <= set(storages):
        check_model(model, by_kernels)


def check_integer_layers(storages: Collection[str]) -> None:
    """Raises AssertionError where linear layers of int8 in any of the storages, shape or number of rows give other
    bits than the reference.
    """
    for storage in storages:
        if not packed_as(storage).quantised:
            continue
        layout = LAYOUTS[storage]
        random = np.random.default_rng(0)
        for outputs, inputs in ((70, 96), (33, 1568)) if layout.weights == GROUP else ((70, 256), (33, 768)):
            weights = StoredTensor("weights", storage, (outputs, inputs), random_rows(storage, outputs, inputs, random))
            x, bias = (
                random.standard_normal((_ROWS[-1], inputs), np.float32),
                random.standard_normal(outputs, np.float32),
            )
            expected = ReferenceArithmetic().linear(x, weights, bias, "int8")
            for rows in _ROWS:
                assert_same_bits(KernelArithmetic().linear(x[:rows], weights, bias, "int8"), expected[:rows])


def main() -> None:
    storages, *directories = sys.argv[1].split(","), *map(Path, sys.argv[2:])
    if directories:
        check_vectors(storages)
    check_integer_layers(storages)
    print(this_machine().name, *map(logits_digest, directories))


if __name__ == "__main__":
    main()
