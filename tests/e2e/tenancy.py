"""Tenants of a running `kolm up`: added, isolated, removed; attacks on it, and its logs afterwards."""

from pathlib import Path

import grpc
import openai
import pytest

from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from services.client.errors import NotFound, PermissionDenied, Unauthenticated
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient
from tests.e2e.command import Kolm


def tenants_come_and_go(kolm: Kolm) -> list[str]:
    """Two of them, over HTTP and gRPC; returns every token that there was."""
    made = {
        tenant: kolm.json("tokens", "create", f"{tenant}-app", "--role=generate", f"--tenant={tenant}", "--expires=1h")
        for tenant in ("acme", "globex")
    }
    tokens = {tenant: str(each["token"]) for tenant, each in made.items()}
    receipt = _ask(kolm, tokens["acme"])
    with (
        LedgerClient.connect(kolm.addresses.ledger, token=tokens["acme"]) as acme,
        LedgerClient.connect(kolm.addresses.ledger, token=tokens["globex"]) as globex,
    ):
        assert [(each.document.tenant, each.receipt_id) for each in acme.receipts()] == [("acme", receipt)]
        content = acme.receipt(receipt, include_content=True).content
        assert content is not None
        assert list(globex.receipts()) == []
        with pytest.raises(NotFound):
            globex.receipt(receipt)
    with (
        Runtime.connect(kolm.addresses.generation, token=tokens["globex"]) as runtime,
        pytest.raises(PermissionDenied) as refused,
    ):
        runtime.serve({"prompt": "The ledger", "tenant": "acme"})
    assert refused.value.reason == "FOREIGN_TENANT"
    kolm("tokens", "revoke", "acme-app")
    with pytest.raises(openai.AuthenticationError):
        _ask(kolm, tokens["acme"])
    assert "acme-app" not in kolm("tokens", "list").stdout
    return [*tokens.values(), kolm.token]


def strangers_get_nothing(kolm: Kolm) -> None:
    """An attack that worked once: a role that callers gave themselves, and no secret."""
    with grpc.insecure_channel(kolm.addresses.ledger, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = LedgerServiceStub(channel)
        for role in ("auditor", "operator"):
            for call in (
                lambda metadata: list(stub.WatchEntries(ledger_pb2.WatchEntriesRequest(), metadata=metadata)),
                lambda metadata: list(stub.ExportBundle(ledger_pb2.ExportBundleRequest(), metadata=metadata)),
                lambda metadata: stub.EraseContent(ledger_pb2.EraseContentRequest(), metadata=metadata),
                lambda metadata: stub.AppendEntry(ledger_pb2.AppendEntryRequest(), metadata=metadata),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call((("kolm-role", role),))
                assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)  # type: ignore[attr-defined]
    with LedgerClient.connect(kolm.addresses.ledger, token="kolm_guess") as client, pytest.raises(Unauthenticated):
        list(client.receipts())


def no_secret_is_written(folder: Path, tokens: list[str]) -> None:
    """Tokens are in their own files and nowhere else below a folder: not in logs, databases, principals."""
    for file in folder.rglob("*"):
        if file.is_file() and file.parent.name != "tokens":
            data = file.read_bytes()
            assert not any(token.encode() in data for token in tokens), file


def _ask(kolm: Kolm, key: str) -> str:
    """The receipt of an answer."""
    http = openai.DefaultHttpxClient(trust_env=False)
    url = f"http://{kolm.addresses.http}/v1"
    with openai.OpenAI(base_url=url, api_key=key, http_client=http, max_retries=0) as client:
        (model,) = client.models.list()
        answer = client.completions.create(model=model.id, prompt="The ledger keeps", max_tokens=4)
    receipts: list[dict[str, str]] = answer.model_extra["kolm"]["receipts"]  # type: ignore[index]
    return receipts[0]["receipt_id"]
