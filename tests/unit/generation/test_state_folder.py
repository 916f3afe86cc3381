"""No two servers have one folder of receipts, and a new replica goes on where another one stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.state_folder import StateTaken, state_folder


def test_a_second_server_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with (
        state_folder(tmp_path, 1) as folder,
        pytest.raises(StateTaken, match="another server has it"),
        state_folder(tmp_path, 1),
    ):
        pass
    assert folder == tmp_path
    with state_folder(tmp_path, 1):
        pass


def test_replicas_take_the_first_free_folder(tmp_path: Path) -> None:
    with state_folder(tmp_path, 2) as second, state_folder(tmp_path, 2) as other:
        (second / "outbox").write_text("a receipt")
        assert {second.name, other.name} == {"0", "1"}
        with pytest.raises(StateTaken, match="2 servers share it"), state_folder(tmp_path, 2):
            pass
    with state_folder(tmp_path, 2) as again:
        assert (again / "outbox").read_text() == "a receipt"
