"""Which token a client shows to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.client.errors import Unauthenticated
from services.client.identity import credentials, is_here, show

HERE, ELSEWHERE = "127.0.0.1:50052", "ledger.example:50052"


def shown(target: str, token: str | None = None) -> str:
    return dict(credentials(target, token)).get("authorization", "")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of `kolm up`, with its owner's token."""
    for name in ("KOLM_TOKEN", "KOLM_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KOLM_DATA_DIR", str(tmp_path))
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "owner").write_text("kolm_owner\n")
    return tmp_path


def test_the_owner_s_token_is_found_and_stays_on_this_machine(folder: Path) -> None:
    assert shown(HERE) == "Bearer kolm_owner"
    assert shown(ELSEWHERE) == ""
    (folder / "tokens" / "owner").unlink()
    assert shown(HERE) == ""


def test_who_says_which_token_is_obeyed_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(ELSEWHERE, "kolm_mine") == "Bearer kolm_mine"
    assert shown(HERE, "") == ""
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(folder / "mine"))
    (folder / "mine").write_text(" kolm_file \n")
    assert shown(ELSEWHERE) == "Bearer kolm_file"
    (folder / "mine").write_text("kolm_rotated")
    assert shown(ELSEWHERE) == "Bearer kolm_rotated"
    monkeypatch.setenv("KOLM_TOKEN", "kolm_said")
    assert shown(HERE) == "Bearer kolm_said"
    monkeypatch.setenv("KOLM_TOKEN", "")
    assert shown(HERE) == ""
    show(None, folder / "mine")
    assert shown(HERE) == "Bearer kolm_rotated"


@pytest.mark.parametrize("data", [None, b"\xff\xfe"])
def test_a_token_file_that_cannot_be_read_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(folder / "mine"))
    if data is not None:
        (folder / "mine").write_bytes(data)
    with pytest.raises(Unauthenticated, match="cannot read the token in"):
        shown(HERE)


@pytest.mark.parametrize(
    ("target", "here"),
    [
        ("localhost:1", True),
        ("[::1]:1", True),
        ("dns:///127.0.0.1:1", True),
        ("unix:/run/kolm", True),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("dns://127.0.0.1/ledger.example:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_another_machine_is_not_this_one(target: str, here: bool) -> None:
    assert is_here(target) is here
