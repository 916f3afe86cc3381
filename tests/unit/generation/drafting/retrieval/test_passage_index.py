"""The index over passages, as it is searched."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from services.generation.drafting.retrieval.datastore import Datastore
from tests.fakes.datastores import BASE, TOKENIZER_CID, builder, documents, encode

TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


def test_a_search_stays_on_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder().build(documents(TEXTS), tmp_path / "store")
    store = Datastore.open(tmp_path / "store", BASE, TOKENIZER_CID)
    before, told = faiss.omp_get_max_threads(), []
    tell = faiss.omp_set_num_threads

    def listen(count: int) -> None:
        told.append(count)
        tell(count)

    monkeypatch.setattr(faiss, "omp_set_num_threads", listen)
    assert len(store.nearest_passages(np.array(encode(TEXTS[3])), 4)) == 4
    assert told == [1, before]
    assert faiss.omp_get_max_threads() == before
