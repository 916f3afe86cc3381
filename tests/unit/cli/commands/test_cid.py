"""`kolm cid` converts both ways."""

from __future__ import annotations

import json

from tests.unit.cli.test_help import kolm

OURS = "cidv1:sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
THEIRS = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


def test_each_spelling_becomes_the_other() -> None:
    assert kolm("cid", OURS) == (0, THEIRS + "\n", "")
    assert kolm("cid", THEIRS) == (0, OURS + "\n", "")
    for spelling in (OURS, THEIRS):
        assert json.loads(kolm("cid", spelling, "--json")[1]) == {"cid": OURS, "multiformats": THEIRS}


def test_what_is_neither_is_named_with_what_was_expected() -> None:
    code, _, err = kolm("cid", OURS[:-1])
    assert code == 2
    assert OURS[:-1] in err
    assert "64 lowercase hex digits" in err
    code, _, err = kolm("cid", "support-head")
    assert (code, "expected cidv1:sha256:<64 hex digits> or bafkrei…" in err) == (2, True)
