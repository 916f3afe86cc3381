"""The one table of what callers need: each RPC of every service with the roles of which one is enough.

The interceptor enforces it before a servicer sees the call. An RPC that is missing here is refused to everybody.
`Principal.sees` and `Principal.reads_content` decide what an answer shows of other tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.runtime.access.principal import ROLES, Role

Permission = frozenset[Role] | None
"""The roles of which one is enough; None where anybody may call, with no credential and from anywhere."""

ANYBODY: Final[Permission] = None


def _roles(*roles: Role) -> frozenset[Role]:
    return frozenset(roles)


_CALLERS = _roles("generate", "read", "audit", "operate")
_RECEIPTS = _roles("generate", "read", "audit")
_EVERY = _roles(*ROLES)
_HEADS = _roles("generate", "read", "audit", "publish", "operate")
_WRITERS = _roles("append", "operate")

_SERVICES: Mapping[str, Mapping[str, Permission]] = {
    "kolm.generation.v1.GenerationService": {
        "Generate": _roles("generate"),
        "GenerateStream": _roles("generate"),
        "Replay": _roles("audit"),
        "Tokenize": _roles("generate", "audit"),
        "Detokenize": _roles("generate", "audit"),
        "GetModelInfo": _CALLERS,
        "GetLoad": _CALLERS,
    },
    "inference.GRPCInferenceService": {
        "ServerLive": ANYBODY,
        "ServerReady": ANYBODY,
        "ModelReady": ANYBODY,
        "ServerMetadata": _CALLERS,
        "ModelMetadata": _CALLERS,
        "ModelConfig": _CALLERS,
        "ModelInfer": _roles("generate"),
        "ModelStreamInfer": _roles("generate"),
    },
    "vllm.grpc.engine.VllmEngine": {
        "Generate": _roles("generate"),
        "Abort": _roles("generate"),
        "HealthCheck": ANYBODY,
        "GetModelInfo": _CALLERS,
        "GetServerInfo": _CALLERS,
        "GetLoads": _CALLERS,
        "GetTokenizer": _roles("generate", "audit"),
    },
    "kolm.ledger.v1.LedgerService": {
        "AppendEntry": _WRITERS,
        "AppendEntries": _WRITERS,
        "GetEntry": _EVERY,
        "GetReceipt": _RECEIPTS,
        "ListReceipts": _RECEIPTS,
        "WatchEntries": _EVERY,
        "GetCheckpoint": ANYBODY,
        "GetInclusionProof": ANYBODY,
        "GetCoseReceipt": _RECEIPTS,
        "AnswerPromise": _RECEIPTS,
        "GetConsistencyProof": ANYBODY,
        "GetTile": ANYBODY,
        "ListVerdicts": _RECEIPTS,
        "GetHaltState": ANYBODY,
        "GetContentUsage": _roles("append", "read", "audit", "operate"),
        "EraseContent": _roles("generate", "operate"),
        "ExportBundle": _RECEIPTS,
    },
    "kolm.registry.v1.RegistryService": {
        "PublishHead": _roles("publish"),
        "GetHead": _HEADS,
        "ListHeads": _HEADS,
        "ResolveHead": _HEADS,
        "WithdrawHead": _roles("publish", "operate"),
        "RecordKScore": _roles("publish"),
        "FindMissingBlobs": _roles("publish"),
        "UploadBlob": _roles("publish"),
        "DownloadBlob": _HEADS,
        "CollectBlobs": _roles("operate"),
    },
    "kolm.telemetry.v1.TelemetryService": {"GetMetrics": _CALLERS},
    "grpc.health.v1.Health": {"Check": ANYBODY, "Watch": ANYBODY, "List": ANYBODY},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ANYBODY},
}

PERMISSIONS: Mapping[str, Permission] = {
    f"/{service}/{rpc}": permission for service, rpcs in _SERVICES.items() for rpc, permission in rpcs.items()
}
"""By the full name of the RPC, `/package.Service/Method`."""
