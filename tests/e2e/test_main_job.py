"""The main job with the real processes: serve, speculate, receipt, replay, verify, stop."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import openai
import pytest

from ledger.audit.log_verification import verify_receipt
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.ledger.receipts import envelope_document
from services.client import Chunk, LedgerClient, Request, Runtime, SamplingParams
from tests.documented import CONFIGURED, LONG_CONTEXT
from tests.e2e.command import PATIENCE, Kolm, children, is_running, until, up
from tests.e2e.tenancy import no_secret_is_written, strangers_get_nothing, tenants_come_and_go
from tests.fakes.tiny_model import make_tiny_model

PROMPT = "The ledger keeps one receipt for every request"


def test_one_command_serves_and_every_request_is_receipted_replayed_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end one service dies, which stops all and says which; `started` ends others by SIGTERM."""
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
    """Leave requests early, until one was not over by then; how many choices they had. Each choice gets its receipt,
    for what it emitted until then.
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
