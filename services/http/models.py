"""`/v1/models`: the one model that the generation server has."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.client import AsyncRuntime, ModelInfo
from services.http.calls.api_error import ApiError
from services.http.calls.caller import token


class Models:
    """Asks the generation server each time; it may have been started again with another model."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime

    async def all(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(await self._info(request))]})

    async def one(self, request: Request) -> Response:
        """Raises ApiError for another model."""
        info, asked = await self._info(request), request.path_params["model"]
        if asked not in (info.model, info.base_cid):
            raise ApiError(404, f"no model {asked!r}; {info.model} is served", "model_not_found", param="model")
        return JSONResponse(_model(info))

    async def _info(self, request: Request) -> ModelInfo:
        return await self._runtime.with_token(token(request)).model_info()


def _model(info: ModelInfo) -> dict[str, Any]:
    """`created` is not known to kolm: its models have digests, not dates."""
    return {
        "id": info.model,
        "object": "model",
        "created": 0,
        "owned_by": "kolm",
        "kolm": {
            "base_cid": info.base_cid,
            "profile_cid": info.profile_cid,
            "context_length": info.context_length,
            "methods": list(info.methods),
            "adapters": dict(info.adapters),
        },
    }
