from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from services.training.devices import faster_precision


@pytest.mark.parametrize(
    ("has", "precision"),
    [
        ({"avx2": True, "avx512f": True, "avx512bf16": False}, "float32"),
        ({"avx512f": True, "avx512bf16": True}, "bfloat16"),
        ({"amx-bf16": True}, "bfloat16"),
        ({"neon": True}, "float32"),
        ({"neon": True, "bf16": True}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_a_cpu_trains_in_bfloat16_where_it_has_instructions_for_it(
    has: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: has)
    assert faster_precision("cpu") == precision
    assert faster_precision("cuda") == "bfloat16"
