"""The Python client of kolm: `Runtime` for generation, `LedgerClient` for the ledger. Synchronous, thread-safe.

    from services.client import Request, Runtime, SpecDecodeConfig

    cfg = SpecDecodeConfig(method="eagle3", eagle_head="…@sha256:…", k=4, accept_threshold=0.0)
    with Runtime.connect("127.0.0.1:50051") as runtime:
        completion = runtime.serve(Request(prompt="…"), spec_decode=cfg)

`AsyncRuntime` generates on an event loop. The values of the ledger are in `services.client.ledger.log`,
the error tree in `services.client.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.documents.content import Content
    from services.client.errors import KolmError
    from services.client.generation.completion import (
        Chunk,
        Completion,
        Event,
        Finished,
        Load,
        ModelInfo,
        Receipt,
        Started,
    )
    from services.client.generation.request import (
        Message,
        Request,
        SamplingParams,
        SpecDecodeConfig,
        StructuredOutputs,
        Tool,
        ToolCall,
        Tools,
    )
    from services.client.generation.runtime import AsyncRuntime, Runtime
    from services.client.identity import ClientTls
    from services.client.ledger.ledger import LedgerClient

_PLACES = {
    "AsyncRuntime": "services.client.generation.runtime",
    "ClientTls": "services.client.identity",
    "Content": "ledger.documents.content",
    **dict.fromkeys(
        ("Chunk", "Completion", "Event", "Finished", "Receipt", "Started"), "services.client.generation.completion"
    ),
    "KolmError": "services.client.errors",
    "LedgerClient": "services.client.ledger.ledger",
    **dict.fromkeys(("Load", "ModelInfo"), "services.client.generation.completion"),
    **dict.fromkeys(("Message", "Request", "SamplingParams"), "services.client.generation.request"),
    "Runtime": "services.client.generation.runtime",
    "SpecDecodeConfig": "services.client.generation.request",
    "StructuredOutputs": "services.client.generation.request",
    **dict.fromkeys(("Tool", "ToolCall", "Tools"), "services.client.generation.request"),
}
"""Where each name is. It is imported when it is first asked for: generation needs nothing of the ledger's client."""

__all__ = [
    "AsyncRuntime",
    "Chunk",
    "ClientTls",
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
    "Request",
    "Runtime",
    "SamplingParams",
    "SpecDecodeConfig",
    "Started",
    "StructuredOutputs",
    "Tool",
    "ToolCall",
    "Tools",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
