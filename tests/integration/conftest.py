"""Servers of integration tests draft from their first request on: the code of copies is compiled before."""

import pytest

from services.generation.engine.numba_cache import compiling, is_compiled, leave_mark
from services.generation.warm_up import warm_up


@pytest.fixture(scope="session", autouse=True)
def compiled_copies() -> None:
    if not is_compiled("copies"):
        with compiling("copies"):
            warm_up("copies")
        leave_mark("copies")
