"""Fixtures of several of the demo's tests, which take seconds to make."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe


@pytest.fixture(scope="session")
def trained_tokenizer() -> PreTrainedTokenizerFast:
    """A small one, trained on the demo's corpus."""
    return bpe.train(400)
