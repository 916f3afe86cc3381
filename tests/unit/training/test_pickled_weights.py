"""Pickles with anything but tensors are refused; `tests/integration/cli/test_hub_heads.py` has one that runs code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.training import pickled_weights


@pytest.fixture(autouse=True)
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of memory and time are for a process of its own."""
    monkeypatch.setattr(pickled_weights, "_bound", lambda size: None)


@pytest.mark.parametrize(
    "content",
    [
        {"fc.weight": [1.0]},
        {"state_dict": {"fc.weight": torch.ones(1)}},
        {"fc.weight": torch.ones(1).expand(1 << 34)},
        [torch.ones(1)],
        b"<html>not found</html>",
    ],
    ids=["list", "nested", "larger than the file", "no names", "not a pickle"],
)
def test_anything_but_names_and_tensors_is_refused(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "pytorch_model.bin", tmp_path / "model.safetensors"
    if isinstance(content, bytes):
        source.write_bytes(content)
    else:
        torch.save(content, source)
    assert pickled_weights.main(str(source), str(target)) == 1
    assert list(json.loads(capsys.readouterr().out)) == ["refused"]
    assert not target.exists()


def test_tensors_are_written_with_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "pytorch_model.bin", tmp_path / "model.safetensors"
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "b": shared.T}, source)
    assert pickled_weights.main(str(source), str(target)) == 0
    assert json.loads(capsys.readouterr().out) == {"tensors": 2}
    assert {name: each.tolist() for name, each in load_file(target).items()} == {
        "a": shared.tolist(), "b": shared.T.tolist()
    }  # fmt: skip
