"""A first start says what it compiles."""

from __future__ import annotations

import logging

import pytest
from numba import njit

from services.generation.engine.compile_log import compile_log


def test_functions_that_are_compiled_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @njit
    def plus_one(x: int) -> int:
        return x + 1

    with caplog.at_level(logging.INFO), compile_log():
        assert plus_one(1) == 2
        assert plus_one(2) == 3
    assert plus_one(1.0) == 2.0
    assert [record.getMessage() for record in caplog.records if "plus_one" in record.getMessage()] == [
        "compiling what samples and drafts: function 1, plus_one"
    ]
