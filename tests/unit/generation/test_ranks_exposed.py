"""Ranks on several hosts send each other prompts without encryption: not without a word of whoever starts them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from services.generation.ranks.bring_up import base_loader
from services.generation.settings import GenerationSettings
from services.runtime.process import CannotStart

MODEL = str(Path(__file__).parents[3] / "demo/toy/base")


async def load(monkeypatch: pytest.MonkeyPatch, address: str, *flags: str) -> None:
    for name, value in {"MASTER_ADDR": address, "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    async with base_loader(GenerationSettings.load(["--model", MODEL, "--tensor-parallel", "2", *flags])):
        return


@pytest.mark.parametrize("address", ["10.0.0.1", "rank-0.example", "0.0.0.0", "2001:db8::1"])
async def test_ranks_beyond_this_machine_need_insecure(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CannotStart, match=f"MASTER_ADDR: ranks would meet at {address}.*neither encrypted.*--insecure"):
        await load(monkeypatch, address)
    caplog.set_level(logging.WARNING)
    await load(monkeypatch, address, "--insecure")
    assert f"ranks meet at {address} without encryption" in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
async def test_ranks_of_one_machine_need_no_word(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await load(monkeypatch, address)
    assert "without encryption" not in caplog.text
