"""Generation servers as replicas of Ray Serve, with the same protos: `serve run deploy/ray/kolm.yaml`.

Serve's proxy takes the calls, places and scales the replicas and replaces those that die. A replica is a server without
its own socket: it checks who calls, answers by the servicer of every generation server, and names its errors alike.
Serve's proxy changes three things (docs/scaling.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import Any

from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve import Application
from ray.serve.grpc_util import RayServegRPCContext

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.api.servicer import SERVICE
from services.generation.serving import opened_servicer
from services.generation.settings import GenerationSettings
from services.runtime.access import current_principal
from services.runtime.calls import REQUEST_ID_KEY, as_kolm_error, current_request_id, request_id_from
from services.runtime.errors import DETAILS_KEY, to_status
from services.runtime.process import access_of, show_token


class _Refused(Exception):
    """The call's context says why."""


class _Call:
    """Serve's context as servicers use one: Serve tells no deadline, and sends no metadata before the answer."""

    def __init__(self, context: RayServegRPCContext) -> None:
        self._context = context

    def time_remaining(self) -> None:
        return None

    async def send_initial_metadata(self, metadata: object) -> None:
        """A promise is in the stream's first event; an answer that is not a stream comes without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Generation:
    """One replica: a model, its engine, its receipts. Everything runs on Serve's event loop for it."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]
        """Returns once the model is loaded. Raises ValidationError for invalid settings, CannotStart."""
        loaded = GenerationSettings(**settings)
        loaded.client_tls.for_process()
        show_token(loaded.token_file)
        self._access = access_of(loaded)
        self._open = AsyncExitStack()
        self._servicer = await self._open.enter_async_context(opened_servicer(loaded, CollectorRegistry()))

    async def __del__(self) -> None:
        """Awaited by Serve once no call is running. Receipts are on disk then, and where it answers in the ledger."""
        await self._open.aclose()

    def check_health(self) -> None:
        """Asked by Serve, which replaces a replica that raises."""
        if not self._servicer.engine.alive:
            raise RuntimeError("the engine has stopped; its error is in the log above")

    async def Generate(self, request: Any, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
        return await self._answer("Generate", request, grpc_context, pb.GenerateResponse)

    async def GetModelInfo(self, request: Any, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
        return await self._answer("GetModelInfo", request, grpc_context, pb.GetModelInfoResponse)

    async def GetLoad(self, request: Any, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
        return await self._answer("GetLoad", request, grpc_context, pb.GetLoadResponse)

    async def Tokenize(self, request: Any, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
        return await self._answer("Tokenize", request, grpc_context, pb.TokenizeResponse)

    async def Detokenize(self, request: Any, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
        return await self._answer("Detokenize", request, grpc_context, pb.DetokenizeResponse)

    async def Check(self, request: Any) -> Any:  # noqa: N802
        """Health, of the replica that the call came to."""
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def GenerateStream(self, request: Any, grpc_context: RayServegRPCContext) -> AsyncIterator[Any]:  # noqa: N802
        with self._guard("GenerateStream", grpc_context):
            async with aclosing(self._servicer.GenerateStream(request, _Call(grpc_context))) as events:  # type: ignore[arg-type, type-var]
                async for event in events:
                    yield event

    async def _answer(self, rpc: str, request: Any, context: RayServegRPCContext, response: type[Any]) -> Any:
        """Serve passes trailing metadata on with an answer only, so a refused call gets an empty one."""
        try:
            with self._guard(rpc, context):
                return await getattr(self._servicer, rpc)(request, _Call(context))
        except _Refused:
            return response()

    @contextmanager
    def _guard(self, rpc: str, context: RayServegRPCContext) -> Iterator[None]:
        """A guard like `CallInterceptor`: it gives the call an id, checks the caller, and maps errors to _Refused."""
        request_id = request_id_from(context.invocation_metadata())
        current_request_id.set(request_id)
        context.set_trailing_metadata([(REQUEST_ID_KEY, request_id)])
        method = f"/{SERVICE}/{rpc}"
        try:
            current_principal.set(self._access.admitted(method, context))
            yield
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            failure = as_kolm_error(method, error)
            status = to_status(failure, request_id)
            context.set_code(failure.code)
            context.set_details(status.message)
            details = (DETAILS_KEY, status.SerializeToString())
            context.set_trailing_metadata([(REQUEST_ID_KEY, request_id), details])
            raise _Refused(status.message) from None


def application(settings: dict[str, Any]) -> Application:
    """The `import_path` of a Serve config; its `args` are settings of the generation service, by their names."""
    return serve.deployment(Generation).bind(settings)
