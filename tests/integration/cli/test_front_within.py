"""Before another engine, `kolm up` has its OpenAI front in the generation service's process."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.generation.engine.text.tokenizer import Tokenizer
from tests.e2e.command import PATIENCE
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.upstreams import FakeUpstream, listening

FREE = tuple(f"--{name}-port=0" for name in ("generation", "ledger", "auditor", "registry", "http"))
REST = ("--audit-rate=0", "--no-explorer", "--json")


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the front with the owner's token, until Ctrl-C has ended everything."""
    model, data = make_tiny_model(tmp_path / "model"), tmp_path / "data"
    async with listening(FakeUpstream("vllm", Tokenizer(model), vocabulary=range(40, 80))) as upstream:
        engine = ["--engine=vllm", f"--plain-url={upstream.url}", f"--weights={model}"]
        command = [sys.executable, "-m", "services.cli", "up", f"--data-dir={data}", *engine, *FREE, *REST]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(PATIENCE):
                addresses: Any = json.loads(await _document(process.stdout))
            token = (data / "tokens" / "owner").read_text().strip()
            shown = {"Authorization": f"Bearer {token}"}
            url = f"http://{addresses['http']}"
            async with httpx2.AsyncClient(base_url=url, headers=shown, timeout=PATIENCE, trust_env=False) as client:
                yield client
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _document(lines: asyncio.StreamReader) -> str:
    text = ""
    while not text.rstrip().endswith("}"):
        text += (await lines.readline()).decode()
    return text


async def test_it_answers_refuses_and_stops_as_one_in_a_process_of_its_own(front: httpx2.AsyncClient) -> None:
    asked = {"prompt": "to be", "max_tokens": 5, "stream": True}
    events = (await front.post("/v1/completions", json=asked)).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    assert [len(chunk["choices"]) for chunk in chunks] == [0, *[1] * 6]
    (receipt,) = chunks[-1]["kolm"]["receipts"]
    assert receipt["ledger_index"] is not None
    assert (await front.get("/health")).status_code == 200
    assert "vllm:num_requests_running" in (await front.get("/metrics")).text
    wrong = await front.post("/v1/completions", json=asked | {"max_tokens": 10_000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")
    stranger = {"Authorization": "Bearer kolm_" + "0" * 43}
    assert (await front.post("/v1/completions", json=asked, headers=stranger)).status_code == 401
