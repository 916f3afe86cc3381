"""Clients from the registries: npm's openai and @anthropic-ai/sdk, Instructor, LangChain, LiteLLM, schemathesis."""

import asyncio
import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.grammars import HERMES
from tests.integration.generation.deployment import PATIENCE
from tests.integration.http.front import Front

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT_TEMPLATE = HERMES  # short, beside schemas in a context of 512 tokens
ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache"
PROGRAMS = Path(__file__).parent / "programs"
REQUIRED = "KOLM_TESTS_NEED_CLIENTS"
"""Set if a missing package is a failure and not a reason to skip (continuous integration)."""
WORDS = {"sun", "rain"}


def need(*found: object) -> None:
    if not all(found):
        if os.environ.get(REQUIRED):
            raise AssertionError(f"{REQUIRED} needs a package that is missing; .ci/run installs it")
        pytest.skip("the package is not installed; .ci/run installs it")


async def run(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Apart from this process's packages and proxies."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI"))}
    environment = inherited | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    limits = {"cwd": cwd, "env": environment, "timeout": PATIENCE}
    asking = partial(subprocess.run, **limits, capture_output=True, text=True, check=False)
    return await asyncio.to_thread(asking, command)


async def answer_of(front: Front, command: list[str]) -> Any:
    """The last line of a program's output, as JSON."""
    done = await run([*command, f"http://127.0.0.1:{front.port}/v1"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


async def node(front: Front, program: str, package: str, folder: Path) -> Any:
    modules = CACHE / "node" / "node_modules"
    need(shutil.which("node"), (modules / package).is_dir())
    (folder / "node_modules").symlink_to(modules)
    (folder / "ask.mjs").write_bytes((PROGRAMS / program).read_bytes())
    return await answer_of(front, ["node", str(folder / "ask.mjs")])


async def test_the_npm_package_of_anthropic(front: Front, tmp_path: Path) -> None:
    found = await node(front, "anthropic_package.mjs", "@anthropic-ai/sdk", tmp_path)
    assert found.pop("verdict") in WORDS
    assert found == {
        "same": True, "usage": True, "counted": True, "receipts": 1, "same call": True, "stopped": "tool_use",
        "after": "text", "refused": ["NotFoundError", 404],
    }  # fmt: skip


async def test_the_npm_package_openai(front: Front, tmp_path: Path) -> None:
    found = await node(front, "openai_package.mjs", "openai", tmp_path)
    assert found.pop("verdict") in WORDS
    assert set(arguments := found.pop("arguments")) <= WORDS
    assert arguments
    assert found == {"same": True, "usage": True, "receipts": 2, "text": "string"}


async def python(front: Front, program: str, place: str) -> Any:
    interpreter = shutil.which(CACHE / place / "bin" / "python")
    need(interpreter)
    return await answer_of(front, [str(interpreter), str(PROGRAMS / program)])


async def test_instructor(front: Front) -> None:
    assert set(await python(front, "instructor_package.py", "clients")) <= WORDS


async def test_langchain(front: Front) -> None:
    same, objects, calls = await python(front, "langchain_package.py", "clients")
    assert same
    assert {*objects, *calls} <= WORDS
    assert len(calls) == 1


async def test_litellm_in_front(front: Front) -> None:
    same, held, calls, refused, first, kept = await python(front, "litellm_package.py", "litellm")
    assert (first, kept) == (True, [1, 1])
    assert same
    assert refused == "ContextWindowExceededError"
    assert calls
    assert {held, *calls} <= WORDS


async def test_no_request_that_schemathesis_makes_brings_a_server_error(front: Front, tmp_path: Path) -> None:
    interpreter = shutil.which(CACHE / "schemathesis" / "bin" / "python")
    need(interpreter)
    examples = os.environ.get("KOLM_TESTS_SCHEMATHESIS_EXAMPLES", "10")
    options = [
        "--checks=not_a_server_error",
        "--phases=fuzzing",
        f"--max-examples={examples}",
        "--seed=1",
        "--no-color",
    ]
    program = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    where = f"http://127.0.0.1:{front.port}/openapi.json"
    done = await run([str(interpreter), "-c", program, "run", where, *options], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "Server error" not in done.stdout
