"""Every reason that a receipt may state has a sentence and a remedy, in answers and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from services.cli.failures.fallbacks import FALLBACKS, explained
from services.generation.drafting.methods import METHODS

ROOT = Path(__file__).resolve().parents[4]
SOURCES = ("requests/policy.py", "requests/heads.py")


def reasons() -> set[str]:
    """Reasons of methods that lack something, and those that the policy and the heads give."""
    written = "".join((ROOT / "services" / "generation" / name).read_text(encoding="utf-8") for name in SOURCES)
    stated = set(
        re.findall(r'"(no_head|head_(?!cid)\w+|temperature|profile_unproven|halt\w*_?\w*|not_loaded)"', written)
    )
    return {spec.missing for spec in METHODS if spec.missing} | stated


def test_every_reason_is_explained_and_no_other() -> None:
    assert reasons() == set(FALLBACKS)


def test_every_reason_is_documented() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| [a-z]", page, flags=re.MULTILINE)) >= set(FALLBACKS)


def test_a_reason_that_only_a_newer_server_knows_is_left_as_it_is() -> None:
    assert explained("another") is None
    assert explained(None) is None
