from __future__ import annotations

import pytest

from tests.softhsm import Token, new_token


@pytest.fixture(scope="session")
def token(tmp_path_factory: pytest.TempPathFactory) -> Token:
    made = new_token(tmp_path_factory.mktemp("softhsm"))
    for label in ("log", "log-2", "operator"):
        made.generate(label)
    return made
