"""Which doors a server has, as its settings say."""

from __future__ import annotations

from services.generation.api.servicer import GenerationServicer
from services.generation.doors import kserve, open_inference
from services.generation.settings import GenerationSettings
from services.runtime.process import CannotStart
from services.runtime.server import Mount


def doors(settings: GenerationSettings, generation: GenerationServicer) -> list[Mount]:
    """Beside GenerationService, on its port. Raises CannotStart where a package is missing."""
    mounts = []
    if settings.kserve:
        inference = kserve.InferenceServicer(generation, generation.identity)
        mounts.append(Mount(open_inference.SERVICE, lambda server: kserve.add_to_server(inference, server)))
    if settings.vllm_engine:
        mounts.append(_vllm_engine(generation, settings.max_sequences))
    return mounts


def _vllm_engine(generation: GenerationServicer, max_sequences: int) -> Mount:
    try:
        from smg_grpc_proto.generated.vllm_engine_pb2_grpc import add_VllmEngineServicer_to_server
    except ModuleNotFoundError:
        missing = "vllm_engine needs smg-grpc-proto, which is not installed: pip install 'kolm-serve[router]'"
        raise CannotStart(missing) from None
    from services.generation.doors.tokenizer_archive import TokenizerArchive
    from services.generation.doors.vllm_engine import SERVICE, VllmEngineServicer

    archive = TokenizerArchive(generation.tokenizer)
    servicer = VllmEngineServicer(generation, generation.identity, archive, max_sequences)
    return Mount(SERVICE, lambda server: add_VllmEngineServicer_to_server(servicer, server))
