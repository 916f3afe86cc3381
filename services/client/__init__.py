"""The Python client of kolm: `Runtime` for generation, `LedgerClient` for the ledger. Synchronous, thread-safe.

    from services.client import Request, Runtime, SpecDecodeConfig

    cfg = SpecDecodeConfig(method="eagle3", eagle_head="…@sha256:…", k=4, accept_threshold=0.0)
    with Runtime.connect("127.0.0.1:50051") as runtime:
        completion = runtime.serve(Request(prompt="…"), spec_decode=cfg)

The values of the ledger are in `services.client.log`, the error tree in `services.client.errors`.
"""

from ledger.documents.content import Content
from services.client.completion import Chunk, Completion, Event, Finished, Load, ModelInfo, Receipt, Replayed, Started
from services.client.errors import KolmError
from services.client.ledger import LedgerClient
from services.client.request import Message, Request, SamplingParams
from services.client.runtime import Runtime
from services.client.spec_decode import SpecDecodeConfig

__all__ = [
    "Chunk",
    "Completion",
    "Content",
    "Event",
    "Finished",
    "KolmError",
    "LedgerClient",
    "Load",
    "Message",
    "ModelInfo",
    "Receipt",
    "Replayed",
    "Request",
    "Runtime",
    "SamplingParams",
    "SpecDecodeConfig",
    "Started",
]
