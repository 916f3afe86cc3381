"""The Open Inference Protocol over gRPC (KServe v2): the model as vLLM's backend for Triton shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

import grpc

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.api.servicer import GenerationServicer
from services.generation.doors import text_tensors
from services.generation.doors.open_inference import MESSAGES, SERVICE
from services.generation.requests.server_identity import Identity
from services.runtime.errors import InvalidArgument, KolmError, NotFound

Context = grpc.aio.ServicerContext[Any, Any]

_VERSION = "1"  # of the model: its digest says which one it is
_TYPES = {"BYTES": 13, "BOOL": 1, "UINT32": 4}  # inference.DataType
_FINISHED = {
    pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length", pb.FINISH_REASON_CANCELLED: "abort",
    pb.FINISH_REASON_ERROR: "error",
}  # fmt: skip


class InferenceServicer:
    """One model. Requests become those of GenerationService, with their receipts, roles and limits."""

    def __init__(self, generation: GenerationServicer, identity: Identity) -> None:
        self._generation, self._identity = generation, identity

    async def ServerLive(self, request: Any, context: Context) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._generation.engine.alive)

    async def ModelReady(self, request: Any, context: Context) -> Any:
        return MESSAGES["ModelReadyResponse"](ready=self._is_served(request.name) and self._generation.engine.alive)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        return MESSAGES["ServerMetadataResponse"](
            name="kolm", version=version("kolm-serve"), extensions=["model_configuration"]
        )

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        self._check(request.name)
        found = MESSAGES["ModelMetadataResponse"](name=self._identity.name, versions=[_VERSION], platform="kolm")
        for name, datatype in text_tensors.INPUTS.items():
            found.inputs.add(name=name, datatype=datatype, shape=[1])
        for name, datatype in text_tensors.OUTPUTS.items():
            found.outputs.add(name=name, datatype=datatype, shape=[-1])
        return found

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        self._check(request.name)
        answer = MESSAGES["ModelConfigResponse"]()
        config = answer.config
        config.name, config.platform, config.backend = self._identity.name, "kolm", "kolm"
        config.model_transaction_policy.decoupled = True
        for name, datatype in text_tensors.INPUTS.items():
            config.input.add(name=name, data_type=_TYPES[datatype], dims=[1], optional=name != "text_input")
        for name, datatype in text_tensors.OUTPUTS.items():
            config.output.add(name=name, data_type=_TYPES[datatype], dims=[-1])
        return answer

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        """The whole answer; by default with the input before it, as that backend has it."""
        self._check(request.model_name)
        asked = text_tensors.read(request)
        if asked.stream:
            raise InvalidArgument("stream", "is true; ModelStreamInfer streams")
        return await self._whole(request, asked, context)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Requests one after the other. A wrong one gets a response with an error, and the next is read."""
        async for request in requests:
            try:
                async for answer in self._answers(request, context):
                    yield _streamed(answer)
            except KolmError as error:
                failed = _streamed(MESSAGES["ModelInferResponse"](model_name=request.model_name, id=request.id))
                failed.error_message = str(error)
                yield failed
            del request  # or it would be there until the next one has come

    async def _answers(self, request: Any, context: Context) -> AsyncIterator[Any]:
        self._check(request.model_name)
        asked = text_tensors.read(request)
        if asked.stream:
            async for answer in self._pieces(request, asked, context):
                yield answer
        else:
            yield await self._whole(request, asked, context)

    async def _whole(self, request: Any, asked: text_tensors.Asked, context: Context) -> Any:
        answer = await self._generation.Generate(asked.request, context)
        before = asked.request.prompt if asked.prepend else ""
        told: dict[str, list[Any]] = {
            "finish_reason": [_FINISHED[each.finish_reason] for each in answer.choices],
            "num_input_tokens": [answer.usage.prompt_tokens],
            "num_output_tokens": [len(each.token_ids) for each in answer.choices],
        }
        texts = [before + each.text for each in answer.choices]
        return text_tensors.response(request, texts, {name: told[name] for name in asked.told}, final=True)

    async def _pieces(self, request: Any, asked: text_tensors.Asked, context: Context) -> AsyncIterator[Any]:
        """New text as it comes, then an empty one with the finish reason."""
        if asked.request.sampling.n > 1:
            raise InvalidArgument("sampling_parameters.n", "is above 1; a stream is of one choice")
        generated = self._generation.GenerateStream(pb.GenerateStreamRequest(request=asked.request), context)
        async with aclosing(generated) as events:  # type: ignore[type-var]
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "chunk" and event.chunk.text:
                    count = [len(event.chunk.token_ids)]
                    wanted = {"num_output_tokens": count} if "num_output_tokens" in asked.told else {}
                    yield text_tensors.response(request, [event.chunk.text], wanted, final=False)
                elif kind == "finished":
                    ended = event.finished
                    told: dict[str, list[Any]] = {
                        "finish_reason": [_FINISHED[ended.finish_reason]],
                        "num_input_tokens": [ended.usage.prompt_tokens],
                        "num_output_tokens": [0],
                    }
                    yield text_tensors.response(request, [""], {n: told[n] for n in asked.told}, final=True)

    def _is_served(self, name: str) -> bool:
        return name in (self._identity.name, self._identity.base_cid)

    def _check(self, name: str) -> None:
        if not self._is_served(name):
            raise NotFound("model", name, f"this server serves {self._identity.name}")


def add_to_server(servicer: InferenceServicer, server: grpc.aio.Server) -> None:
    """Under the protocol's names."""
    calls = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelInfer")
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            MESSAGES[f"{name}Request"].FromString,
            MESSAGES[f"{name}Response"].SerializeToString,
        )
        for name in calls
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        servicer.ModelStreamInfer,
        MESSAGES["ModelInferRequest"].FromString,
        MESSAGES["ModelStreamInferResponse"].SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _streamed(answer: Any) -> Any:
    message = MESSAGES["ModelStreamInferResponse"]()
    message.infer_response.CopyFrom(answer)
    return message
