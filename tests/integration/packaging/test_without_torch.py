"""The environment that `make demo` makes, out of this one's packages: what it has, and all that serves in it."""

import asyncio
import json
import re
import subprocess
import venv
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.documents.audit import Verdict
from ledger.documents.signed_document import read_document
from ledger.keys.ed25519 import SigningKey
from services.cli.frame.exits import FAILED, USAGE
from services.client.ledger.log import LogEntry
from services.generation.target.config.config import read_config
from tests.access import open_access_file
from tests.distributions import ROOT, closure, declared, places
from tests.fakes.heads import block_config, head_config, write_kolm, write_kolm_block, write_speculators
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_head import edit_tensors, make_tiny_adapter
from tests.integration.generation.api.test_methods import TEXT, build
from tests.integration.generation.deployment import PATIENCE, Deployment, asking

_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*|accelerate|peft|sympy")


def test_an_installation_that_serves_brings_neither_torch_nor_cuda() -> None:
    made = re.findall(r"\.\[([\w,]+)\]", (ROOT / "packages/make_venv.py").read_text("utf-8"))
    images = re.findall(r"\.\[([\w,]+)\]", (ROOT / "Dockerfile").read_text("utf-8"))
    assert made[0] == "up"
    for extras in (made[0], *images, "all"):
        found = closure(declared(*extras.split(",")))
        assert {name for name in found if _TORCH.fullmatch(name)} == set(), extras
        assert {name for name, each in found.items() if each is None} == set(), extras
    assert "torch" in closure(declared("training"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of that environment, with this checkout's kolm."""
    environment = tmp_path_factory.mktemp("serving") / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    found = closure(declared("up")).values()
    for place in places([distribution("kolm-serve"), *filter(None, found)]):
        (packages / place.name).symlink_to(place)
    return environment / "bin" / "python"


WALK = """
import importlib, pkgutil, sys
import demo.run, ledger, services
gpu = "services.generation.target.gpu."
left_out = ("services.training", "ledger.keys.pkcs11_signer", gpu + "opencl", gpu + "cuda")
for package in (services, ledger):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(left_out):
            importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_every_module_but_training_is_imported_there(python: Path) -> None:
    done = subprocess.run([python, "-P", "-c", WALK], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_training_names_the_extra_that_it_needs(python: Path, tmp_path: Path, model: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "The ledger"}) + "\n")
    command = ["heads", "train", model, "--prompts=prompts.jsonl", "--out=head", "--steps=1"]
    done = subprocess.run(
        [python, "-m", "services.cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "pip install" in done.stderr, "[training]" in done.stderr) == (USAGE, True, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [("ledger", "--database-url"), ("registry", "--database")])
def test_a_database_that_needs_another_extra_names_it(python: Path, tmp_path: Path, flags: tuple[str, str]) -> None:
    service, flag = flags
    command = [python, "-m", f"services.{service}", f"--data-dir={tmp_path}", f"{flag}=postgresql+psycopg://k@h/d"]
    done = subprocess.run([*command, "--listen=127.0.0.1:0"], capture_output=True, text=True, check=False)
    assert (done.returncode, "extra postgres" in done.stderr) == (FAILED, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_published_head_is_converted_there(python: Path, tmp_path: Path, model: Path) -> None:
    config = head_config(read_config(model))
    write_speculators(tmp_path / "theirs", config)
    write_kolm(tmp_path / "ours", config)
    code = "import sys; from pathlib import Path; from services.cli.foreign_heads import convert; "
    code += "convert(*map(Path, sys.argv[1:]), None)"
    subprocess.run([python, "-c", code, tmp_path / "theirs", tmp_path / "made", model], check=True)
    made, ours = (tmp_path / folder / "model.safetensors" for folder in ("made", "ours"))
    assert made.read_bytes() == ours.read_bytes()


@asynccontextmanager
async def process(python: Path, module: str, **flags: object) -> AsyncIterator[str]:
    """The address of `python -m MODULE`, once it listens."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    started = await asyncio.create_subprocess_exec(
        python, "-m", module, "--listen=127.0.0.1:0", *given, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield await _address(started)
    finally:
        started.terminate()
        async with asyncio.timeout(PATIENCE):
            await started.communicate()


async def _address(started: asyncio.subprocess.Process) -> str:
    assert started.stderr is not None
    lines = []
    async with asyncio.timeout(PATIENCE):
        async for line in started.stderr:
            if b"listening on" in line:
                return line.split()[-1].decode()
            lines.append(line.decode())
    raise AssertionError("".join(lines))


@pytest.fixture
async def deployment(tmp_path: Path, model: Path) -> AsyncIterator[Deployment]:
    """With its ledger up, in this process; the auditor's key counts."""
    deployment = Deployment(tmp_path, _in_bfloat16(model, tmp_path / "base"))
    await deployment.start_ledger()
    for role, service in (("receipts", "generation"), ("receipts", "gguf"), ("auditor", "auditor")):
        SigningKey.load_or_create(tmp_path / service / "keys" / f"{role}.pem", role).publish(deployment.trusted)
    yield deployment
    await deployment.stop()


def _in_bfloat16(model: Path, folder: Path) -> Path:
    """A copy whose weights have a dtype that numpy does not know."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    edit_tensors(folder / "model.safetensors", lambda tensors: _round(tensors))
    return folder


def _round(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()})


@pytest.mark.slow
async def test_servers_and_the_auditor_serve_everything_there(
    python: Path, deployment: Deployment, tmp_path: Path
) -> None:
    base = deployment.model
    adapter = make_tiny_adapter(tmp_path / "adapter", base, rank=8, dtype=torch.bfloat16)
    write_kolm(tmp_path / "head", head_config(read_config(base)))
    store = build(base, TEXT, tmp_path / "store")
    gguf = make_tiny_gguf(tmp_path / "tiny.gguf")
    write_kolm_block(tmp_path / "block", block_config(read_config(gguf)))
    own = {"ledger": deployment.ledger_address, "trusted_keys": deployment.trusted}
    shared: dict[str, Any] = own | {"principals": open_access_file(), "cache_bytes": "5MiB"}
    async with AsyncExitStack() as running:

        async def start(module: str, **flags: object) -> str:
            return await running.enter_async_context(process(python, f"services.{module}", **flags))

        of_folder, of_gguf, _ = await asyncio.gather(
            start("generation", state_dir=tmp_path / "generation", model=base, head=tmp_path / "head",
                  adapter=f"tone={adapter}", shared_datastore=store, **shared),
            start("generation", state_dir=tmp_path / "gguf", model=gguf, head=tmp_path / "block", **shared),
            start("auditor", data_dir=tmp_path / "auditor", model=base, adapter=f"tone={adapter}", **own),
        )  # fmt: skip
        stub, other = [GenerationServiceStub(await deployment.channel(each)) for each in (of_folder, of_gguf)]
        plain, drafted, retrieved, adapted = [
            await stub.Generate(asking(max_tokens=24, ignore_eos=True, **members))
            for members in ({"method": "off"}, {"method": "eagle3"}, {"method": "rest"}, {"adapter": "tone"})
        ]
        word = sampling_pb2.StructuredOutputs(regex="signed")
        held = await stub.Generate(asking(max_tokens=40, structured_outputs=word))
        block, off = [await other.Generate(asking(max_tokens=24, method=name)) for name in ("block", "off")]
        assert [each.metrics.method for each in (drafted, retrieved, block)] == ["eagle3", "rest", "block"]
        assert _tokens(plain) == _tokens(drafted) == _tokens(retrieved) != _tokens(adapted)
        assert _tokens(block) == _tokens(off)
        assert held.choices[0].text == "signed"
        served = {each.choices[0].receipt.receipt_id for each in (plain, drafted, retrieved, adapted, held)}
        async with asyncio.timeout(PATIENCE):
            async for verdict in _verdicts(await deployment.ledger()):
                if verdict.receipt_id in served:
                    assert verdict.outcome == "EXACT", verdict
                    served.remove(verdict.receipt_id)
                if not served:
                    break


async def _verdicts(ledger: LedgerServiceStub) -> AsyncIterator[Verdict]:
    """Those in the log, and those to come."""
    async for message in ledger.WatchEntries(ledger_pb2.WatchEntriesRequest(follow=True)):
        document = read_document(LogEntry(message.entry.entry).envelope)
        if isinstance(document, Verdict):
            yield document


def _tokens(response: pb.GenerateResponse) -> list[int]:
    return list(response.choices[0].token_ids)
