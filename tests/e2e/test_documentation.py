"""Commands and services of the documentation, run as they are written."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest

from docs.outputs import up as shown_up
from docs.outputs import write_files
from ledger.audit.log_verification import verify_receipt
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.init import Authority
from services.cli.ledger.receipts import envelope_document
from services.client.generation.completion import Chunk
from services.client.generation.request import Request, SamplingParams
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient
from services.generation.target.config.config import read_config
from tests import documented
from tests.documented import CONFIGURED, LONG_CONTEXT, ROOT, SMOLLM2, TRAINED_HEAD, WITH_ADAPTERS
from tests.e2e.command import PATIENCE, Kolm, children, is_running, until, up
from tests.e2e.shell import Shell, started
from tests.e2e.tenancy import no_secret_is_written, strangers_get_nothing, tenants_come_and_go
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model
from tests.object_storage import CREDENTIALS, make_bucket
from tests.softhsm import Token


def test_every_command_for_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _folder(tmp_path, monkeypatch), started(shown_up(), tmp_path) as shell:
        assert _asked_by_curl(shell.addresses["http"])["kolm"]["receipts"]
        shell.places = _places(shell)
        for line in SMOLLM2:
            if line.startswith("kolm serve"):
                with shell.serving(line):
                    pass
            else:
                shell.run(line)


def test_a_base_with_all_that_goes_with_it_and_a_head_that_is_trained_tried_published_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, try_it, *publish, serve = TRAINED_HEAD
    start, *lines = WITH_ADAPTERS
    with _folder(tmp_path, monkeypatch):
        base = str(_small_base(tmp_path, monkeypatch))
        Shell(tmp_path, places={"smollm2": base}).run(train)
        places, flags = {"demo/smollm2/head": "head", "path/to/smaller": base}, ("--model", base, "--audit-rate=0")
        with started(f"{start} {try_it.removeprefix('kolm up ')}", tmp_path, *flags, places=places) as shell:
            for line in (*lines, *publish):
                shell.run(line)
        with started(serve, tmp_path, *flags) as shell:
            answer = shell.kolm.json("generate", "def area(", "--method=eagle3", "--max-tokens=4")
            newest = shell.kolm.json("heads", "list")[0]
        assert answer["receipt"]["document"]["spec_decode"]["head_cid"] == newest["head_cid"]


def _small_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base of random weights in the place of the bundled one, with a head and adapters."""
    base = make_tiny_model(folder / "base")
    write_kolm(folder / "head", head_config(read_config(base)))
    for name in ("courteous", "capitals"):
        make_tiny_adapter(folder / "adapters" / name, base)
    monkeypatch.setenv("KOLM_MODEL", str(base))
    return base


@contextmanager
def _folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the files that the pages name besides the demo's."""
    (path / "demo").symlink_to(ROOT / "demo")
    write_files(path)
    (path / "before.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "edit.txt").write_text("Rename a to x:\n\ndef add(a, b):\n    return a + b\n")
    prompts = [json.dumps({"prompt": f"The ledger keeps {number}"}) + "\n" for number in range(12)]
    for name in ("prompts.jsonl", "held-out.jsonl", "prompts/held-out/code.jsonl"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("".join(prompts))
    monkeypatch.chdir(path)
    yield


def _asked_by_curl(front: str) -> Any:
    """The answer to the README's own line, which has the front's default port."""
    (line,) = re.findall(r"^ {4}(curl (?:.*\\\n)*.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    asked = line.replace("127.0.0.1:50057", front)
    return json.loads(subprocess.check_output(["bash", "-c", asked], text=True))


def _places(shell: Shell) -> dict[str, str]:
    """The values for words of the pages, if the bundled model is served."""
    Path("keys").symlink_to(".kolm/trusted")
    Path("ledger.sqlite3").symlink_to(".kolm/ledger.sqlite3")
    Path("promises").mkdir()
    Path("policy").write_text(f"log {Path('.kolm/log.vkey').read_text()}quorum none\n")
    other = SigningKey.load_or_create(Path("other.pem"), "auditor").publish(Path("mnt/other/public"))
    return {
        "/mnt/other/public/auditor-3f0c2a9d1b7e4c55.pub": str(other),
        "3f0c2a9d": other.stem.partition("-")[2],
        "my-key.pem": str(shell.folder / ".kolm/keys/receipts.pem"),
        "cidv1:sha256:…": f"cidv1:sha256:{64 * '0'}",
        "https://log.example/": f"http://{shell.addresses['explorer']}/",
    }


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """In a folder with the files that the pages name besides the demo's."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")
    (tmp_path / "kolm.toml").write_text('[ledger]\ndata_dir = "configured"\n')
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def test_services_by_hand(shell: Shell, s3_endpoint: str) -> None:
    make_bucket(s3_endpoint, "heads")
    bucket = {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}
    base = str(make_tiny_model(shell.folder / "base"))
    shell.places = {"path/to/base": base, "smollm2": base, "http://127.0.0.1:9000": s3_endpoint}
    with ExitStack() as stay:
        for line in documented.BY_HAND:
            if "kolm serve" not in line:
                shell.run(line)
            elif "--principals" in line:
                ledger = {"KOLM_GENERATION_LEDGER": shell.addresses["ledger"]} if "generation" in line else {}
                stay.enter_context(shell.serving(line, **ledger))
            else:
                with shell.serving(line, **bucket):
                    pass
        shell.run('kolm generate "Where is my parcel?" --max-tokens 4')
        until(lambda: len(shell.kolm.json("receipts", "list")) == 1)


def test_ledgers(shell: Shell) -> None:
    for line in documented.LEDGERS:
        with shell.serving(line):
            assert shell.run("kolm ledger head --trusted unknown")
    assert Path("var/lib/kolm/ledger/ledger.sqlite3").exists()  # a system's folder is left alone
    assert b"ENCRYPTED" in Path(".kolm/keys/log.pem").read_bytes()


def test_datastores_and_generation_servers(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small base replaces the bundled one: each server loads it."""
    base = make_tiny_model(shell.folder / "base")
    write_kolm(shell.folder / "head", head_config(read_config(base)))
    for asked in ("KOLM_MODEL", "KOLM_GENERATION_MODEL"):
        monkeypatch.setenv(asked, str(base))
    for name, text in (("docs/read.md", "# A page\n"), ("docs/page.css", "p {}\n"), ("src/sum.py", "def add(a, b):\n")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(20 * text)
    Path("answers.txt").write_text(20 * "The sky is blue.\n")
    library = str(Path(json.__file__).parent)
    shell.places = {
        "$(python -c 'import sysconfig; print(sysconfig.get_path(stdlib))')": library,  # a part of it
        "demo/smollm2/head": str(shell.folder / "head"),
        "smollm2": str(base),
    }
    for line in documented.DATASTORES:
        shell.run(line)
    shutil.copytree("docs.store", "acme.store")
    for line in documented.GENERATIONS:
        with shell.serving(line):
            shell.run('kolm generate "The sky is"')


def test_a_witness_of_a_ledger(shell: Shell) -> None:
    authority = Authority.create(datetime.now(UTC)).issue("w1", ("127.0.0.1",), datetime.now(UTC), 1)
    Path("w1.pem").write_bytes(authority.certificate)
    Path("w1.key").write_bytes(authority.key)
    shell.places = {"0.0.0.0:50055": "127.0.0.1:0"}
    ledger, witness = documented.WITNESSED
    with shell.serving(ledger):
        shutil.copy("ledger/log.vkey", "log.vkey")
    with shell.serving(witness):
        assert Path("w1/vkey").read_text().startswith("w1.example/kolm+")


def test_a_ledger_with_tls(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    init, serve, *lines = documented.WITH_TLS
    shell.run(init)
    for export in Path("deployment/client.env").read_text().splitlines():
        name, _, value = export.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, *shlex.split(value))
    with shell.serving(serve):
        Path("deployment/public").symlink_to("ledger/public")
        for line in lines:
            shell.run(line)


def test_a_ledger_whose_key_is_in_a_device(shell: Shell, softhsm: Token) -> None:
    shutil.copy(softhsm.pin_file, "pin")
    (line,) = documented.IN_A_DEVICE
    with shell.serving(line):
        assert shell.run("kolm ledger head --trusted unknown")
    assert not Path(".kolm/keys").exists()


def test_a_ledger_on_postgresql(shell: Shell, postgres_url: str) -> None:
    shell.places = {"postgresql+psycopg://kolm@db/kolm": postgres_url, "/mnt/other": str(shell.folder)}
    serve, fsck = documented.ON_POSTGRESQL
    with shell.serving(serve):
        shell.run("kolm trust add .kolm/public")
    shell.run(fsck)


PROMPT = "The ledger keeps one receipt for every request"


def test_one_command_serves_and_every_request_is_receipted_replayed_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end one service dies, which stops all and is named; `started` ends others by SIGTERM."""
    model = make_tiny_model(tmp_path / "model", context=32_768)
    (tmp_path / "kolm.toml").write_text('[generation]\nmodel_name = "configured"\n')
    monkeypatch.chdir(tmp_path)
    data, configured = tmp_path / "data", shlex.split(CONFIGURED)[2:]
    larger = [word for word in shlex.split(LONG_CONTEXT)[2:] if word not in ("--model", "path/to/model")]
    with up(data, model, *configured, *larger, "--metrics-port=0", "--audit-rate=0") as (process, kolm):
        assert kolm.json("status", "--check")["serving"]
        plain = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=off")
        speculated = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=lookahead", "--verify=inline")
        assert (speculated["token_ids"], speculated["text"]) == (plain["token_ids"], plain["text"])
        assert (speculated["finish_reason"], speculated["usage"]["completion_tokens"]) == ("length", 48)
        receipt = verify_receipt(speculated["receipt"]["envelope"].encode(), TrustedKeys.load(data / "trusted"))
        assert receipt.to_document() == speculated["receipt"]["document"]
        assert (receipt.spec_decode.method, receipt.spec_decode.verified_identical_to_off) == ("lookahead", True)

        sampled = kolm.json("generate", PROMPT, "--max-tokens=48", "--temperature=0.8", "--seed=3", "--n=2")
        assert sampled["choices"][0]["token_ids"] != plain["token_ids"]
        assert _asked_by_openai_s_client(kolm) == plain["text"]
        cancelled = _cancel_a_request(kolm)
        audit = kolm.json("audit", "run", f"--model={model}")
        assert {verdict["outcome"] for verdict in audit["verdicts"]} == {"EXACT"}
        assert len(audit["verdicts"]) == 5 + cancelled
        assert {(each["verification"], each["replayed_by"]) for each in audit["verdicts"]} == {("prefill", "auditor")}
        assert kolm.json("audit", "run", f"--model={model}")["verdicts"] == []

        shown = kolm.json("receipts", "show", str(speculated["ledger_index"]))
        assert (shown["outcome"], shown["proof"]["signature"], shown["proof"]["inclusion"]) == ("EXACT", True, True)
        kinds = kolm.json("ledger", "verify")["kinds"]
        assert kinds == {"key": 1, "receipt": 5 + cancelled, "verdict": 5 + cancelled}
        watched = kolm.json("monitor", "--once", "--max-age=1h")
        assert (watched["ok"], watched["size"]) == (True, sum(kinds.values()))
        strangers_get_nothing(kolm)
        tokens = tenants_come_and_go(kolm)
        services = children(process)
        assert len(services) == 6  # ledger, registry, generation, auditor, explorer, http
        os.kill(services[0], signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        assert not any(map(is_running, services))
    assert "ledger service was killed by SIGKILL" in (tmp_path / "up.log").read_text()
    no_secret_is_written(tmp_path, tokens)


def _asked_by_openai_s_client(kolm: Kolm) -> str:
    """The same prompt through the HTTP front."""
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"http://{kolm.addresses.http}/v1", api_key=kolm.token, http_client=http) as client:
        (model,) = client.models.list()
        assert model.id == "configured"
        answer = client.completions.create(model=model.id, prompt=PROMPT, max_tokens=48, temperature=0)
    return answer.choices[0].text


def _cancel_a_request(kolm: Kolm) -> int:
    """Leave requests early, until one was still running; returns the number of their choices. Each choice gets a
    receipt for its tokens until then.
    """
    choices, attempts, ended = 8, 0, set[str]()
    sampling = SamplingParams(max_tokens=450, temperature=1.0, seed=5, n=choices, ignore_eos=True)
    while "cancelled" not in ended and attempts < 8:
        attempts += 1
        name = f"left early, {attempts}"
        request = Request(prompt=PROMPT, sampling=sampling, request_id=name)
        with Runtime.connect(kolm.addresses.generation, token=kolm.token) as runtime, runtime.stream(request) as events:
            assert any(isinstance(event, Chunk) for event in events)
        with LedgerClient.connect(kolm.addresses.ledger, token=kolm.token) as ledger:
            until(lambda name=name: len(list(ledger.receipts(ReceiptFilter(request_id=name)))) == choices)  # type: ignore[misc]
            receipts = [
                envelope_document(receipt.envelope) for receipt in ledger.receipts(ReceiptFilter(request_id=name))
            ]
        ended |= {receipt["document"]["output"]["finish_reason"] for receipt in receipts}
    assert "cancelled" in ended
    return choices * attempts
