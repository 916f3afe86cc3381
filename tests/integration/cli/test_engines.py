"""Commands with an engine of their own: replay, audit, doctor."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.signed_document import sign_document
from ledger.encoding.stream_digest import token_digest
from ledger.keys.ed25519 import SigningKey
from services.auditor.own_engine import OwnEngine
from services.cli.ledger import receipt_files as receipt_saving
from services.client.generation.completion import Receipt
from services.generation.target.identity import base_cid, tokenizer_cid
from services.generation.target.kernels.compilation import cache_folder
from tests.cli import kolm
from tests.e2e.command import KOLM
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment
from tests.mutations import replace
from tests.unit.client.test_answer_check import CONTENT, TEXT, signed
from tests.unit.ledger.builders import foreign_receipt, receipt

REPLAY = ("replay", "{receipt}", "--model", "{model}")
COMMANDS = {
    ("audit", "run", "--model", "{model}"): 1,  # another base, so that the receipt is left
    ("models", "list", "{model}"): 0,
    ("verify", "{receipt}", "--model", "{model}"): 3,
    REPLAY: 1,  # another base
}
"""Exit codes of commands that need a tokenizer."""
_IN_ONE_PROCESS = """
import json, sys
from tests.cli import kolm
found = []
for words in json.loads(sys.argv[1]):
    code, _, talk = kolm(*words)
    found.append((code, talk, [name for name in ("transformers", "torch") if name in sys.modules]))
print(json.dumps(found))
"""


@pytest.fixture
def names(deployment: Deployment, tmp_path: Path) -> dict[str, Path]:
    """A model, and a receipt that names its tokenizer and another base."""
    model, path = make_tiny_model(tmp_path / "model"), tmp_path / "receipt.json"
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    document = signed(tokenizer_cid=tokenizer_cid(model))
    envelope = sign_document(document, key).to_bytes()
    index = deployment.ledger.append(envelope, CONTENT).index
    receipt_saving.save(
        path, Receipt(envelope, document.receipt_id, index, False, CONTENT, TEXT), "a prompt", deployment.address
    )
    return {"model": model, "receipt": path}


def environment(deployment: Deployment, tmp_path: Path) -> dict[str, str]:
    own = {"KOLM_LEDGER": deployment.address, "KOLM_DATA_DIR": str(tmp_path), "KOLM_MODELS": str(tmp_path / "models")}
    return os.environ | own | {"TERM": "xterm"}


@pytest.mark.slow
def test_no_command_with_a_tokenizer_imports_torch(
    deployment: Deployment, names: dict[str, Path], tmp_path: Path
) -> None:
    given = json.dumps([[word.format(**names) for word in words] for words in COMMANDS])
    command = [sys.executable, "-c", _IN_ONE_PROCESS, given]
    own = environment(deployment, tmp_path) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = json.loads(subprocess.check_output(command, env=own, text=True))
    assert [(code, modules) for code, _, modules in found] == [(c, ["transformers"]) for c in COMMANDS.values()], found
    assert not any("\x1b" in talk or PROGRESS in talk for _, talk, _ in found)


PROGRESS = "hashing the base"


@pytest.mark.slow
def test_a_terminal_shows_what_is_being_done_and_programs_see_nothing(
    deployment: Deployment, names: dict[str, Path], tmp_path: Path
) -> None:
    replay, own = [word.format(**names) for word in REPLAY], environment(deployment, tmp_path)
    assert PROGRESS in on_a_terminal([*KOLM, *replay], own)
    assert PROGRESS not in on_a_terminal([*KOLM, *replay, "--json"], own)


def test_a_receipt_of_another_base_is_recognised_by_the_digest_and_nothing_is_loaded(
    deployment: Deployment, names: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnEngine, "load", lambda *_, **__: pytest.fail("the base is loaded"))
    words = [word.format(**names) for word in REPLAY]
    done = kolm(*words, "--json", environment=environment(deployment, tmp_path))
    assert (done.code, done.document["outcome"]) == (1, "UNREPLAYABLE")
    assert base_cid(names["model"]) in done.document["reason"]


def on_a_terminal(words: list[str], own: dict[str, str]) -> str:
    """Output of a command to a stderr that is a terminal."""
    near, far = pty.openpty()
    with subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=far) as process:
        os.close(far)
        written = b""
        try:
            while read := os.read(near, 1 << 16):
                written += read
        except OSError:  # how a terminal ends
            pass
        finally:
            os.close(near)
        process.wait()
    return written.decode()


def foreign(folder: Path, finish: str = "stop", **changes: Any) -> Path:
    """A file with a receipt of another engine's answer, which its last token ended."""
    document, path = signed(**changes), folder / f"{len(list(folder.iterdir()))}.json"
    end = CONTENT.output_token_ids[-1]
    output = replace(
        document.output, stream_digest=token_digest(CONTENT.output_token_ids), min_margin=None, finish_reason=finish,
        stop_reason=end if finish == "stop" else None,
    )  # fmt: skip
    document = replace(
        document, engine="vllm/0.32.0", spec_decode=foreign_receipt().spec_decode, output=output,
        sampling=replace(document.sampling, stop_token_ids=(end,)),
    )  # fmt: skip
    key = SigningKey.load_or_create(folder / "keys/receipts.pem", "receipts")
    told = Receipt(sign_document(document, key).to_bytes(), document.receipt_id, None, False, CONTENT, TEXT)
    receipt_saving.save(path, told, "a prompt", "127.0.0.1:1")
    return path


def test_a_replay_of_another_engine_s_receipt_is_a_pass_along_its_output(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    known, nowhere = {"base_cid": base_cid(model)}, ("--trusted", tmp_path / "missing")
    warm = foreign(tmp_path, **known)
    done = kolm("replay", warm, "--model", model, "--json", *nowhere).document
    assert (done["outcome"], done["verification"], done["reference"]["differing"]) == ("CONSISTENT", "reference", 0)
    other = foreign(tmp_path)
    done = kolm("replay", other, "--model", model, *nowhere)
    assert (done.code, "UNCHECKED" in done.out, base_cid(model) in done.out) == (1, True, True)
    taken = kolm("replay", other, "--model", model, "--any-storage", "--json", *nowhere).document
    assert (taken["outcome"], base_cid(model) in taken["reason"]) == ("CONSISTENT", True)
    done = kolm("replay", foreign(tmp_path, "length", **known), "--model", model, *nowhere)  # of fewer than max_tokens
    assert (done.code, "INCONSISTENT" in done.out) == (3, True)
    cold = foreign(tmp_path, **known, sampling=replace(receipt(0).sampling, temperature=0.0))
    done = kolm("replay", cold, "--model", model, *nowhere)
    assert (done.code, "INCONSISTENT" in done.out) == (3, True)


def test_a_tokenizer_that_does_not_load_is_found_before_a_service_is_started_on_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert kolm("doctor", "--model", tmp_path).code == 2


@pytest.mark.slow
def test_all_kernels_can_be_compiled_ahead_without_a_model(tmp_path: Path) -> None:
    """A second start compiles nothing. The first fills the other tests' cache, the second compiles removed kernels."""
    copy = tmp_path / "kernels"
    compiled(cache_folder())
    with suppress(shutil.Error):  # files that tests beside this one are about to rename
        shutil.copytree(cache_folder(), copy)
    for path in (*copy.glob("rows-*.o"), *copy.rglob("*._two_best-*.nbi")):
        path.unlink()
    for compiles in (True, False):
        talk = compiled(copy)
        assert ("compiled kernels: 1 of 1, rows" in talk and counted(talk)) == compiles
    names = {path.name.partition("-")[0] for path in copy.glob("*.o")}
    assert names >= {"rows", "cache_float32", "linear_q4_1", "integer_q4_1", "embed_q4_1", "linear_bfloat16"}


def counted(talk: str) -> bool:
    """Whether functions are counted up to their total."""
    counts = [(int(done), int(total)) for done, total in re.findall(r"once for this version: (\d+) of (\d+)", talk)]
    assert counts == sorted(counts)
    return bool(counts) and all(0 < done <= total for done, total in counts)


def compiled(folder: Path) -> str:
    """Stderr of `kolm doctor --compile`, with its kernels in `folder`."""
    command = [*KOLM, "doctor", "--compile", "--model", "no/such/model"]
    environment = {**os.environ, "KOLM_KERNEL_CACHE": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"all kernels are compiled: {folder}\n"
    return done.stderr
