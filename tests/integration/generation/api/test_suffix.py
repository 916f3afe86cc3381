"""Outputs that suffix decoding drafts from are gone once the content of their receipts is erased in the ledger."""

from __future__ import annotations

import pytest

from kolm.generation.v1 import generation_pb2
from kolm.ledger.v1 import ledger_pb2
from ledger.documents.erasure import Erasure
from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from services.generation.drafting.suffix import SuffixDrafter
from tests.integration.generation.deployment import Deployment, asking, until


async def test_an_erased_output_is_kept_by_no_drafter(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    drafters, begin = list[SuffixDrafter](), SuffixDrafter.__init__
    monkeypatch.setattr(SuffixDrafter, "__init__", lambda self: (begin(self), drafters.append(self))[0])
    stub = await deployment.start_generation()
    for tenant in ("a", "b"):
        for method in ("auto", "suffix", "suffix"):
            answer = await stub.Generate(asking(tenant=tenant, method=method, max_tokens=20, ignore_eos=True))
    (drafter,) = drafters

    def kept() -> list[int]:
        return [len(drafter._pasts[tenant, None].text) for tenant in ("a", "b")]

    assert kept() == [42, 42]  # twenty tokens and an end, twice; `auto` leaves nothing
    operator = SigningKey.from_seed(bytes([9]) * 32, "operator")
    operator.publish(deployment.trusted)
    receipt = answer.choices[0].receipt
    erasure = Erasure(receipt.receipt_id, receipt.ledger_index, "the tenant asked for it", "2026-11-22T12:00:00.000Z")
    request = ledger_pb2.EraseContentRequest(envelope=sign_document(erasure, operator).to_bytes())
    await (await deployment.ledger()).EraseContent(request)

    async def forgotten() -> bool:
        await stub.GetLoad(generation_pb2.GetLoadRequest())
        return kept() == [42, 21]

    await until(forgotten)
