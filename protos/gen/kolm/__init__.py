"""kolm from Python: a client of its services, and verification of what they signed.

    import kolm

    with kolm.Runtime.connect("127.0.0.1:50051") as runtime:
        completion = runtime.serve(kolm.Request(prompt="The sky is"), spec_decode={"method": "lookahead"})

    report = kolm.verify("log.tar.gz", trusted=".kolm/trusted")

Names are imported when they are first used: `verify` and `verify_receipt` need `kolm-verify`, the others
`kolm-serve[cli]`, which has all of that, too. The generated messages are in `kolm.generation.v1`, `kolm.ledger.v1` and
`kolm.registry.v1`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.bundle.report import BundleReport
    from ledger.errors import LedgerError
    from ledger.keys.trusted_keys import TrustedKeys
    from services.client.errors import KolmError
    from services.client.generation.completion import (
        Choice,
        Chunk,
        Completion,
        Event,
        Finished,
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
    from services.client.registry import RegistryClient
    from services.client.verification import ProvenReceipt, verify, verify_receipt

_PLACES = {
    "services.client.generation.runtime": ("AsyncRuntime", "Runtime"),
    "ledger.bundle.report": ("BundleReport",),
    "services.client.generation.completion": (
        "Choice",
        "Chunk",
        "Completion",
        "Event",
        "Finished",
        "ModelInfo",
        "Receipt",
        "Started",
    ),
    "services.client.identity": ("ClientTls",),
    "services.client.errors": ("KolmError",),
    "services.client.ledger.ledger": ("LedgerClient",),
    "ledger.errors": ("LedgerError",),
    "ledger.keys.trusted_keys": ("TrustedKeys",),
    "services.client.generation.request": (
        "Message",
        "Request",
        "SamplingParams",
        "SpecDecodeConfig",
        "StructuredOutputs",
        "Tool",
        "ToolCall",
        "Tools",
    ),
    "services.client.registry": ("RegistryClient",),
    "services.client.verification": ("ProvenReceipt", "verify", "verify_receipt"),
}

__all__ = [
    "AsyncRuntime",
    "BundleReport",
    "Choice",
    "Chunk",
    "ClientTls",
    "Completion",
    "Event",
    "Finished",
    "KolmError",
    "LedgerClient",
    "LedgerError",
    "Message",
    "ModelInfo",
    "ProvenReceipt",
    "Receipt",
    "RegistryClient",
    "Request",
    "Runtime",
    "SamplingParams",
    "SpecDecodeConfig",
    "Started",
    "StructuredOutputs",
    "Tool",
    "ToolCall",
    "Tools",
    "TrustedKeys",
    "verify",
    "verify_receipt",
]


def __getattr__(name: str) -> Any:
    place = next((place for place, names in _PLACES.items() if name in names), None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(place), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"kolm.{name}: {_why(error.name or '')}") from error


def _why(missing: str) -> str:
    """The reason why a module of kolm's is missing, or the extra that brings a package."""
    top = missing.partition(".")[0]
    if top in ("services", "ledger"):
        other = getattr(import_module(top), "__path__", ["?"])
        return f"needs the package {top} of kolm-serve, and finds another one in {next(iter(other))}"
    return f"needs {missing}, which is not installed; kolm's full wheel with its extra cli brings it"


def __dir__() -> list[str]:
    return sorted(__all__)
