"""A head's own training facts count until the log has a k-score."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.heads.head_loading import says_weak


@pytest.mark.parametrize(
    ("facts", "weak"),
    [
        ('{"held_out_acceptance": {"code": {"by_depth": [0.5, 0.3]}, "text": {"by_depth": [0.9, 0.2]}}}', True),
        ('{"held_out_acceptance": {"code": {"by_depth": [0.9, 0.7]}, "text": {"by_depth": [0.6, 0.2]}}}', False),
        ('{"held_out_acceptance": {}}', False),
        ('{"steps": 7}', False),
        ('{"held_out_acceptance": {"code": {"by_depth": [0.1, "all"]}}}', False),
        ('{"held_out_acceptance": {"code": [0.1]}}', False),
        ('{"held_out_acceptance": 3}', False),
        ("[]", False),
        ("{", False),
    ],
)
def test_a_head_is_judged_by_what_it_says_clearly(tmp_path: Path, facts: str, weak: bool) -> None:
    (tmp_path / "training.json").write_text(facts)
    assert says_weak(tmp_path) is weak


def test_a_head_that_says_nothing_is_not_judged(tmp_path: Path) -> None:
    assert not says_weak(tmp_path)


def test_the_bundled_head_says_that_it_is_weak() -> None:
    assert says_weak(Path("demo/smollm2/head"))
