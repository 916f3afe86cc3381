"""A generation service that lies and covers it up: `python -m tests.e2e.echoing [flags]`.

While the file named by KOLM_TEST_FAULT exists, drafted requests get tokens that are not the model's. Asked to
replay, it decodes nothing: it echoes what it has recorded.
"""

from __future__ import annotations

import sys
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.api import messages
from services.generation.api.servicer import GenerationServicer
from services.generation.engine.events import Outcome
from services.generation.receipts.issuer import ReceiptIssuer, SignedReceipt
from services.generation.settings import GenerationSettings
from services.runtime.process import run_service
from tests.e2e.width_dependent import serve

RECORDED: dict[tuple[tuple[int, ...], int], Outcome] = {}


honest_issue = ReceiptIssuer.issue


def issue(
    self: ReceiptIssuer, receipt_id: str, resolved: Any, choice: int, outcome: Outcome, *rest: Any
) -> SignedReceipt:
    RECORDED[resolved.prompt, choice] = outcome  # the receipt of an unfinished choice, then the true one
    return honest_issue(self, receipt_id, resolved, choice, outcome, *rest)


async def echo(self: GenerationServicer, request: pb.ReplayRequest, context: object) -> pb.ReplayResponse:
    return messages.replay_message(RECORDED[tuple(request.prompt_token_ids), request.choice], request.profile_cid)


if __name__ == "__main__":
    ReceiptIssuer.issue = issue  # type: ignore[method-assign, assignment]
    GenerationServicer.Replay = echo  # type: ignore[method-assign, assignment]
    sys.exit(run_service(GenerationSettings, serve))
