"""`python -m benchmarks.through`: what kolm adds to a request through another engine. Callers stream the same
completions from the engine itself and through kolm before it, in turns, so that whatever slows the machine slows both.

    vllm serve MODEL --port 8000
    kolm up --engine vllm --plain-url http://127.0.0.1:8000 --weights MODEL --audit-rate 0
    python -m benchmarks.through --bare http://127.0.0.1:8000/v1 --kolm http://127.0.0.1:PORT/v1 --weights MODEL \\
      --key-file .kolm/tokens/owner

`--fake 8000` serves instead, until it is stopped, a vLLM that computes nothing and has a token every 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.measurement import Measurement, Subject
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.model_path import model_path

_TEXT = "The ledger of a harbour lists every ship, its cargo and the day on which it left. Caller {} asks: "


async def answered(client: httpx2.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any]) -> list[float]:
    """When the chunks of one stream came, in seconds since it was asked for."""
    started, arrivals = time.perf_counter(), list[float]()
    async with client.stream("POST", f"{url}/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise SystemExit(f"{url} answers {response.status_code}: {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if line.startswith("data: {") and '"choices":[{' in line.replace(" ", ""):
                arrivals.append(time.perf_counter() - started)
    return arrivals


async def at_once(
    client: httpx2.AsyncClient, url: str, headers: dict[str, str], bodies: Sequence[dict[str, Any]]
) -> tuple[float, list[list[float]]]:
    """Seconds until all callers have their answers, and the answers."""
    started = time.perf_counter()
    answers = await asyncio.gather(*(answered(client, url, headers, body) for body in bodies))
    return time.perf_counter() - started, answers


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = Tokenizer(options.weights)
    urls = {"bare": options.bare, "kolm": options.kolm}
    seconds: dict[str, list[float]] = {"bare": [], "kolm": []}
    added: dict[str, list[float]] = {"first": [], "next": []}
    key = None if options.key_file is None else options.key_file.read_text().strip()
    shown = {"bare": {}, "kolm": {} if key is None else {"Authorization": f"Bearer {key}"}}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=600.0, limits=limits, trust_env=False) as client:
        models = {}
        for name, url in urls.items():
            models[name] = (await client.get(f"{url}/models", headers=shown[name])).json()["data"][0]["id"]
        for number in range(options.rounds + 1):
            found = {}
            for name in ("bare", "kolm") if number % 2 else ("kolm", "bare"):
                bodies = [
                    {
                        "model": models[name], "prompt": tokenizer.encode(_TEXT.format(caller)), "temperature": 0,
                        "max_tokens": options.tokens, "stream": True, "ignore_eos": True,
                    }
                    for caller in range(options.callers)
                ]  # fmt: skip
                found[name] = await at_once(client, urls[name], shown[name], bodies)
            if number:  # the first warms both up
                for name, (took, _) in found.items():
                    seconds[name].append(took)
                times = {name: _milliseconds(answers) for name, (_, answers) in found.items()}
                for which, each in added.items():
                    each.append(times["kolm"][which] - times["bare"][which])
    best = {name: min(each) for name, each in seconds.items()}
    return {
        "callers": options.callers,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "seconds": {name: [round(each, 4) for each in every] for name, every in seconds.items()},
        "throughput_lost": best["kolm"] / best["bare"] - 1.0,
        "throughput_lost_median": statistics.median(seconds["kolm"]) / statistics.median(seconds["bare"]) - 1.0,
        "added_ms": {which: statistics.median(each) for which, each in added.items()},
        "added_ms_least": {which: min(each) for which, each in added.items()},
    }


def _milliseconds(arrivals: Sequence[Sequence[float]]) -> dict[str, float]:
    """Medians over the callers: until the first chunk, and from one chunk to the next."""
    return {
        "first": statistics.median(each[0] for each in arrivals) * 1e3,
        "next": statistics.median((each[-1] - each[0]) / max(1, len(each) - 1) for each in arrivals) * 1e3,
    }


async def fake(port: int, weights: Path) -> None:
    from tests.fakes.upstreams import FakeUpstream, listening

    upstream = FakeUpstream("vllm", Tokenizer(weights), vocabulary=range(400, 900), pace=0.01, context=4096, port=port)
    async with listening(upstream):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", help="the engine's own OpenAI API, which ends with /v1")
    parser.add_argument("--kolm", help="kolm's OpenAI API before it, which ends with /v1")
    parser.add_argument("--weights", type=Path, required=True, help="the model or its name, for its tokenizer")
    parser.add_argument("--key-file", type=Path, help="kolm's API key: .kolm/tokens/owner beside a `kolm up`")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--fake", type=int, metavar="PORT", help="serve a fake vLLM there, and nothing else")
    options = parser.parse_args()
    options.weights = model_path(options.weights)
    if options.fake:
        asyncio.run(fake(options.fake, options.weights))
        return
    result = asyncio.run(measured(options))
    Measurement.now("through", result, Subject.of(options.weights)).write()
    for which in ("first", "next"):
        print(f"{which} chunk: {result['added_ms'][which]:+.2f} ms (least {result['added_ms_least'][which]:+.2f})")
    print(f"throughput lost: {result['throughput_lost_median']:.1%} (least {result['throughput_lost']:.1%})")


if __name__ == "__main__":
    main()
