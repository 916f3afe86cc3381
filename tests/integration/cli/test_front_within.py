"""Before another engine, `kolm up` has its OpenAI front in the generation service's process."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from services.generation.engine.text.tokenizer import Tokenizer
from tests.e2e.command import PATIENCE, own_environment
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.upstreams import FakeUpstream, listening
from tests.forked import Forked

FREE = tuple(f"--{name}-port=0" for name in ("generation", "ledger", "auditor", "registry", "http"))
REST = ("--audit-rate=0", "--no-explorer", "--json")


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the front with the owner's token, until Ctrl-C has ended everything."""
    model, data = make_tiny_model(tmp_path / "model"), tmp_path / "data"
    async with listening(FakeUpstream("vllm", Tokenizer(model), vocabulary=range(40, 80))) as upstream:
        engine = ("--engine=vllm", f"--plain-url={upstream.url}", f"--weights={model}")
        command = (str(tmp_path / "up.log"), f"--data-dir={data}", *engine, *FREE, *REST)
        with Forked("tests.e2e.forking_up", *command, environment=own_environment()) as process:
            addresses = json.loads(await asyncio.to_thread(process.stdout.readline))
            token = (data / "tokens" / "owner").read_text().strip()
            shown = {"Authorization": f"Bearer {token}"}
            url = f"http://{addresses['http']}"
            async with httpx2.AsyncClient(base_url=url, headers=shown, timeout=PATIENCE, trust_env=False) as client:
                yield client
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0


async def test_it_answers_refuses_and_stops_as_one_in_a_process_of_its_own(front: httpx2.AsyncClient) -> None:
    asked = {"prompt": "to be", "max_tokens": 5, "stream": True}
    events = (await front.post("/v1/completions", json=asked)).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * 7
    (receipt,) = chunks[-1]["kolm"]["receipts"]
    assert receipt["ledger_index"] is not None
    assert (await front.get("/health")).status_code == 200
    assert "vllm:num_requests_running" in (await front.get("/metrics")).text
    wrong = await front.post("/v1/completions", json=asked | {"max_tokens": 10_000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")
    stranger = {"Authorization": "Bearer kolm_" + "0" * 43}
    assert (await front.post("/v1/completions", json=asked, headers=stranger)).status_code == 401
