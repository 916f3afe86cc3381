"""Products of a small head, by any number of rows, columns and threads, are those of the plain matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba.core.errors import TypingError

from services.generation.drafting.eagle3 import products
from services.generation.drafting.eagle3.products import halved, multiply, panels_of, product_share
from services.generation.target.team import team_size


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("columns", [24, 128, 300])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("terms", [1, 7, 400])
def test_a_product_is_that_of_the_plain_matrix(terms: int, rows: int, columns: int, halves: bool) -> None:
    random = torch.Generator().manual_seed(rows * columns)
    weight = torch.randn(columns, terms, generator=random).to(torch.bfloat16 if halves else torch.float32).float()
    x = torch.randn(rows, terms, generator=random)
    (panels,) = halved([panels_of(weight[:20], weight[20:])])
    assert panels.dtype == (np.uint16 if halves else np.float32)
    for threads in {1, team_size()}:
        out = np.full((rows, columns), np.nan, np.float32)
        multiply(x.numpy(), panels, out, product_share.address, threads)
        np.testing.assert_allclose(out, (x.double() @ weight.double().T).numpy(), rtol=0, atol=1e-4)


def test_the_team_is_woken_for_large_weights_only() -> None:
    assert 400 * 300 > products._TEAM > 400 * 24


def test_one_weight_that_needs_all_its_bits_keeps_all_weights_wide() -> None:
    whole, rounded = torch.full((2, 8), 1.0 + 2.0**-20), torch.ones(2, 8)
    assert {panels.dtype for panels in halved([panels_of(whole), panels_of(rounded)])} == {np.dtype(np.float32)}


def test_rows_that_do_not_lie_one_after_the_other_are_refused_when_it_is_compiled() -> None:
    (weight,) = halved([panels_of(torch.ones(16, 8))])
    with pytest.raises(TypingError, match="C-contiguous"):
        multiply(np.ones((2, 16), np.float32)[:, ::2], weight, np.empty((2, 16), np.float32), 0, 1)
