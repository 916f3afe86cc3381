"""Bad requests: each a clear error that names the field, and a server that goes on."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.generation.serving import opened_servicer
from services.runtime.process import CannotStart
from tests.fakes.tampered_targets import GatedTarget, Loader
from tests.integration.generation.deployment import Deployment, asking, failure

NAN = float("nan")

WRONG = {
    "an empty prompt": (asking(""), "prompt"),
    "a prompt with no text": (pb.GenerateRequest(prompt=""), "prompt"),
    "a prompt of 5 MB": (asking("x" * 5_000_000), "prompt"),
    "a prompt that cannot fit by its bytes alone": (asking("x" * 200_000), "prompt"),
    "a prompt longer than the context": (asking("ledger " * 600), "prompt"),
    "no messages": (asking("", messages=pb.ChatMessages()), "messages"),
    "a role that the template does not know": (
        asking("", messages=pb.ChatMessages(messages=[pb.Message(role="wizard", content="x")])),
        "messages",
    ),
    "more messages than tokens fit": (asking("", messages=pb.ChatMessages(messages=[pb.Message()] * 600)), "messages"),
    "no token ids": (asking("", token_ids=pb.TokenIds()), "token_ids"),
    "a token id out of range": (asking("", token_ids=pb.TokenIds(ids=[5, 384])), "token_ids"),
    "prompt and output past the context": (asking(max_tokens=512), "sampling.max_tokens"),
    "no tokens": (asking(max_tokens=0), "sampling.max_tokens"),
    "more min than max tokens": (asking(max_tokens=4, min_tokens=5), "sampling.min_tokens"),
    "a NaN temperature": (asking(temperature=NAN), "sampling.temperature"),
    "a negative temperature": (asking(temperature=-0.1), "sampling.temperature"),
    "top_p of nothing": (asking(top_p=0.0), "sampling.top_p"),
    "top_k past the vocabulary": (asking(top_k=385), "sampling.top_k"),
    "a penalty past its range": (asking(frequency_penalty=2.5), "sampling.frequency_penalty"),
    "a repetition penalty past its range": (asking(repetition_penalty=11.0), "sampling.repetition_penalty"),
    "an empty stop string": (asking(stop=[""]), "sampling.stop"),
    "seventeen stop strings": (asking(stop=["x"] * 17), "sampling.stop"),
    "too many stop ids": (asking(stop_token_ids=range(65)), "sampling.stop_token_ids"),
    "too many biases": (asking(logit_bias=dict.fromkeys(range(301), 1.0)), "sampling.logit_bias"),
    "a bias that is infinite": (asking(logit_bias={1: float("inf")}), "sampling.logit_bias"),
    "no choices": (asking(n=0), "sampling.n"),
    "a hundred choices": (asking(n=100), "sampling.n"),
    "21 logprobs": (asking(logprobs=21), "sampling.logprobs"),
    "an unknown method": (asking(method="psychic"), "spec_decode.method"),
    "k of 0": (asking(k=0), "spec_decode.k"),
    "k of a million": (asking(k=10**6), "spec_decode.k"),
    "lossy acceptance": (asking(accept_threshold=0.1), "spec_decode.accept_threshold"),
    "NaN acceptance": (asking(accept_threshold=NAN), "spec_decode.accept_threshold"),
    "a head for another method": (asking(method="lookahead", eagle_head="h@sha256:ab"), "spec_decode.eagle_head"),
    "a head by no name": (asking(method="eagle3", eagle_head="my head"), "spec_decode.eagle_head"),
    "verification left unspecified on purpose": (asking(verify=0), "spec_decode.verify"),
    "verification by an unknown number": (asking(verify=7), "spec_decode.verify"),
    "an n-gram of one": (asking(method="lookahead", parameters={"ngram": 1}), "spec_decode.parameters.ngram"),
    "a window for off": (asking(method="off", parameters={"window": 1}), "spec_decode.parameters.window"),
    "a tree of no width": (asking(method="eagle3", parameters={"tree_width": 0}), "spec_decode.parameters.tree_width"),
    "a tree of a thousand tokens": (asking(parameters={"tree_tokens": 1000}), "spec_decode.parameters.tree_tokens"),
    "a tree for lookahead": (
        asking(method="lookahead", parameters={"tree_width": 2}),
        "spec_decode.parameters.tree_width",
    ),
    "a parameter of no method": (asking(parameters={"luck": 7}), "spec_decode.parameters.luck"),
    "an unknown workload": (asking(workload=99), "workload"),
    "a request id with a line break": (asking(request_id="a\nb"), "request_id"),
    "a long tenant": (asking(tenant="x" * 129), "tenant"),
}


TOO_LONG = (
    "a prompt that cannot fit by its bytes alone",
    "a prompt longer than the context",
    "more messages than tokens fit",
    "prompt and output past the context",
)


@pytest.fixture
async def stub(deployment: Deployment) -> GenerationServiceStub:
    return await deployment.start_generation()


async def test_every_bad_field_is_named_and_the_server_goes_on(stub: GenerationServiceStub) -> None:
    for what, (request, field) in WRONG.items():
        refused = await failure(stub.Generate(request), what)
        assert (refused.code.name, refused.fields) == ("INVALID_ARGUMENT", [field]), what
        reason = "LOSSY_ACCEPTANCE" if "threshold" in field else "INVALID_ARGUMENT"
        assert refused.reason == ("CONTEXT_LENGTH_EXCEEDED" if what in TOO_LONG else reason), what
        assert field in refused.message
    assert (await stub.Generate(asking(max_tokens=2))).choices
    assert "lookahead" in (await failure(stub.Generate(asking(method="psychic")))).message


async def test_a_full_queue_says_when_to_come_back_and_loses_nothing(deployment: Deployment) -> None:
    loader = Loader(GatedTarget)
    stub = await deployment.start_generation(loader, max_sequences=1, max_waiting=2)
    assert isinstance(loader.target, GatedTarget)
    loader.target.close()
    calls = [stub.Generate(asking(max_tokens=3)) for _ in range(8)]
    loader.target.open()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    for each in refused:
        assert each.code().name == "RESOURCE_EXHAUSTED"
    assert len(await deployment.receipts(8 - len(refused))) == 8 - len(refused)


async def test_missing_truncated_and_contradicting_model_files_end_the_start_with_one_line(
    deployment: Deployment, tmp_path: Path
) -> None:
    async def problem(directory: Path) -> str:
        with pytest.raises(CannotStart) as caught:
            async with opened_servicer(deployment.settings(model=directory), CollectorRegistry()):
                pass
        return str(caught.value)

    with pytest.raises(ValidationError):
        deployment.settings(model=tmp_path / "nowhere")
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in deployment.model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "model.safetensors" in await problem(broken)
    (broken / "model.safetensors").write_bytes(weights)
    config = (broken / "config.json").read_text()
    (broken / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    assert "model.layers.2" in await problem(broken)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"context_length": 513}, "--context-length: 513 tokens; this model takes at least 1 and at most 512"),
     ({"cache_bytes": 300_000}, "--cache-bytes: 300000 bytes cannot hold one sequence of 512 tokens")],
)  # fmt: skip
async def test_sizes_that_do_not_fit_the_model_end_the_start_by_their_flag(
    deployment: Deployment, changes: dict[str, int], words: str
) -> None:
    with pytest.raises(CannotStart) as caught:
        async with opened_servicer(deployment.settings(**changes), CollectorRegistry()):
            pass
    assert words in str(caught.value)
