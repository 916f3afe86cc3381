"""Rows of a pass that tokens are drawn from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.request import SamplingParams, UnusableLogits
from services.generation.engine.sampling.draws import draw, draw_rows
from services.generation.target.arrays import Float32
from tests.examples import examples
from tests.fakes.table_target import SIZES, rows

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.7, 1.0, 100.0)),
    top_k=st.sampled_from((0, 3)),
    top_p=st.sampled_from((1.0, 0.9)),
    min_p=st.sampled_from((0.0, 0.05)),
    seed=st.integers(0, 2**64 - 1),
)


@st.composite
def batches(data: st.DrawFn) -> tuple[Float32, list[int], list[bytes]]:
    """Logits in rows that do not lie side by side, some of them once or several times, and their draws."""
    logits = np.array(data(st.integers(1, 300).flatmap(lambda n: st.lists(rows(st.just(n)), min_size=1, max_size=9))))
    padded = np.full((len(logits), logits.shape[1] + 5), np.nan, np.float32)
    padded[:, : logits.shape[1]] = logits
    wanted = data(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=12))
    draws = [draw(data(PARAMS), data(st.integers(0, 3)), data(st.integers(0, 2**40))) for _ in wanted]
    return padded[:, : logits.shape[1]], wanted, draws


@given(batch=batches())
@settings(deadline=None, max_examples=examples(300))
def test_a_row_drawn_beside_others_is_that_drawn_alone(batch: tuple[Float32, list[int], list[bytes]]) -> None:
    logits, wanted, draws = batch
    together = draw_rows(logits, wanted, draws)
    assert len(together) == len(wanted)
    for found, row, asked in zip(together, wanted, draws, strict=True):
        (alone,) = draw_rows(logits[row : row + 1].copy(), [0], [asked])
        assert (found.token, *found.row[2:]) == (alone.token, *alone.row[2:])
        assert np.array_equal(found.row.peaks, alone.row.peaks)


@given(logits=rows(SIZES), params=PARAMS)
@settings(deadline=None)
def test_a_greedy_draw_is_the_largest_whatever_the_parameters(logits: Float32, params: SamplingParams) -> None:
    (found,) = draw_rows(logits[None], [0], [draw(params, 0, 1, greedy=True)])
    assert found.token == found.row.token == int(np.argmax(logits))


def test_a_row_with_a_fault_spoils_no_other() -> None:
    logits = np.zeros((6, 300), np.float32)
    logits[:, 7] = 1.0
    logits[1, 299], logits[3, 0], logits[4] = np.nan, np.inf, -np.inf
    found = draw_rows(logits, range(6), [draw(SamplingParams(temperature=1e-6, top_p=0.5), 0, 0)] * 6)
    assert [drawn.token for drawn in found if not drawn.row.fault] == [7, 7, 7]
    assert all(drawn.token == drawn.row.token for drawn in found if drawn.row.fault)
    for row, fault in ((1, "NaN"), (3, "infinity"), (4, "no token")):
        with pytest.raises(UnusableLogits, match=f"row {row} .*{fault}"):
            found[row].row.checked(f"row {row}")


def test_no_rows_are_no_draws() -> None:
    assert draw_rows(np.zeros((0, 5), np.float32), [], []) == []
