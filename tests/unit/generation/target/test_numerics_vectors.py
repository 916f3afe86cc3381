"""The files of `tests/vectors/numerics` hold for the reference and for the kernels, alone and in large passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.generation.target.arrays import Float32
from services.generation.target.config.rope import rotary
from services.generation.target.reference import operations
from tests.numerics.bits import assert_same_bits
from tests.numerics.exponential import exponential_by_kernel
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.model import Forward, by_kernels, by_reference, check_model
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.sampling import EngineSampling, ReferenceSampling, Sampling, functions, noises, outcome
from tests.numerics.vectors import FOLDER, SECTIONS, check, read, values_of
from tests.vectors.make_numerics import files


@pytest.mark.slow
def test_the_files_are_what_the_reference_makes_of_them() -> None:
    made = files()
    assert {f"numerics/{path.name}": path.read_bytes() for path in FOLDER.iterdir()} == made
    assert sum(map(len, made.values())) < 600_000


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reference_gives_the_bits_in_the_files(section: str) -> None:
    check(section, ReferenceArithmetic())


@pytest.mark.parametrize("turns", [1, 3, 29])
@pytest.mark.parametrize("section", SECTIONS)
def test_kernels_give_the_bits_in_the_files(section: str, turns: int) -> None:
    check(section, KernelArithmetic(), turns)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_team_gives_the_bits_in_the_files(section: str) -> None:
    check(section, KernelArithmetic(members=3))


@pytest.mark.parametrize("exponential", [operations.exp, exponential_by_kernel], ids=["reference", "kernel"])
def test_the_exponential_function_gives_the_bits_in_the_file(exponential: Callable[[Float32], Float32]) -> None:
    case = read("elementary")[0]
    assert_same_bits(exponential(values_of(case["x"])), values_of(case["exp"]))


def test_the_frequencies_are_those_in_the_file() -> None:
    for case in read("rotation"):
        expected = values_of(case["frequencies"])
        found = rotary(case["parameters"], 2 * len(expected), 8192)
        assert found == (tuple(expected.tolist()), case["attention_factor"])


@pytest.mark.parametrize("forward", [by_reference, by_kernels])
def test_a_whole_model_gives_the_logits_in_the_file(forward: Forward) -> None:
    check_model(read("model"), forward)


@pytest.mark.parametrize("sampling", [ReferenceSampling(), EngineSampling()], ids=["reference", "engine"])
def test_sampling_gives_the_bits_and_tokens_in_the_file(sampling: Sampling) -> None:
    written = read("sampling")
    assert functions(sampling, written["functions"]["at"]) == written["functions"]["expected"]
    assert noises(sampling, written["noise"]["at"]) == written["noise"]["expected"]
    for case in written["rows"]:
        assert outcome(sampling, case) == case["expected"]
