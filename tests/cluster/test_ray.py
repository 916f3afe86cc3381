"""Generation servers as replicas of Ray Serve, on a cluster of two nodes: `make test-ray`."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import openai
import pytest

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.keys.envelope import Envelope
from services.cli.up.local_services import Addresses, LocalServices, principals_file, token_file
from services.cli.up.supervisor import Supervisor
from services.client import Completion, KolmError, LedgerClient, Request, Runtime, SamplingParams, SpecDecodeConfig
from services.client.errors import ResourceExhausted, Unavailable
from tests.e2e.command import Kolm, local_services, say, until
from tests.fakes.tiny_model import make_tiny_model
from tests.mutations import replace
from tests.serving import known_port

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")

import yaml  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from services.generation.ray_serve import Generation  # noqa: E402

CONFIG = yaml.safe_load((Path(__file__).parents[2] / "deploy/ray/kolm.yaml").read_text())
PATIENCE = 300.0  # seconds; only a test that fails gets there
PROMPT = "The ledger keeps one receipt for every request. " * 4  # several blocks of the prefix cache
LINES = 200


@dataclass(frozen=True, slots=True)
class Deployed:
    """Serve's proxy and a ledger beside it; `other` is the node that the proxy is not on."""

    kolm: Kolm
    cluster: Cluster
    other: object

    def replicas(self) -> int:
        """How many replicas take calls."""
        deployment = serve.status().applications["kolm"].deployments["Generation"]
        return deployment.replica_states.get("RUNNING", 0)

    def ask(self, method: str, *, stream: bool = False, prompt: str = PROMPT) -> Completion:
        sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=7, ignore_eos=True)
        request, config = Request(prompt=prompt, sampling=sampling), SpecDecodeConfig(method=method)
        with Runtime.connect(self.kolm.addresses.generation) as runtime:
            if not stream:
                return runtime.serve(request, spec_decode=config)
            return runtime.serve(request, spec_decode=config, on_promise=lambda promise: None)  # streams

    def logged(self) -> set[str]:
        """The receipts in the log, by id."""
        with LedgerClient.connect(self.kolm.addresses.ledger, token=self.kolm.token) as ledger:
            return {receipt.receipt_id for receipt in ledger.receipts()}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("ray")
    services = local_services(folder / "data", make_tiny_model(folder / "model"), http_port=0)
    services.trust_own_keys()
    os.environ["RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING"] = (
        "0"  # else one call at a time never leaves the proxy's node
    )
    supervisor = Supervisor(say)
    ledger = supervisor.start(services.ledger(), PATIENCE)
    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=node)
    try:
        other = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        cluster.wait_for_nodes()
        port = known_port()
        functions = CONFIG["grpc_options"]["grpc_servicer_functions"]
        serve.start(
            proxy_location="HeadOnly",
            grpc_options={"port": port, "grpc_servicer_functions": functions},
            http_options={"port": known_port()},
        )
        deployment = serve.deployment(
            ray_actor_options={"num_cpus": 1},
            autoscaling_config={
                "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1,
                "upscale_delay_s": 0, "downscale_delay_s": 3600, "metrics_interval_s": 0.2,
            },
            max_ongoing_requests=32,
        )(Generation)  # fmt: skip
        serve.run(deployment.bind(settings(services, ledger)), name="kolm")
        proxy = f"127.0.0.1:{port}"
        places = Addresses(proxy, ledger, "127.0.0.1:1", http=supervisor.start(services.http(proxy), PATIENCE))
        yield Deployed(Kolm(places, services.data_dir), cluster, other)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
        supervisor.stop(10.0)


def settings(services: LocalServices, ledger: str) -> dict[str, object]:
    """Settings of each replica, as a Serve config has them."""
    data = services.data_dir
    return {
        "model": str(services.model), "ledger": ledger, "replicas": 4, "halt_poll_seconds": 0.2,
        "state_dir": str(data / "generation"), "keys_dir": str(data / "keys"), "trusted_keys": str(data / "trusted"),
        "token_file": str(token_file(data, "generation")), "principals": str(principals_file(data)),
    }  # fmt: skip


def test_the_config_is_one_of_serve_s() -> None:
    (application,) = ServeDeploySchema(**CONFIG).applications
    assert application.import_path == "services.generation.ray_serve:application"


def test_a_refusal_comes_through_serve_with_its_reason(deployed: Deployed) -> None:
    for method, reason in (("eagle3", "METHOD_NOT_LOADED"), ("none", "INVALID_ARGUMENT")):
        with pytest.raises(KolmError) as refused:
            deployed.ask(method)
        assert refused.value.reason == reason
    with pytest.raises(KolmError):
        deployed.ask("eagle3", stream=True)


def test_replicas_follow_the_queue_answer_alike_and_lose_nothing_when_a_node_dies(deployed: Deployed) -> None:
    assert deployed.replicas() == 1
    batches = (batch(deployed, str(number)) for number in count())
    until(lambda: next(batches) or deployed.replicas() == 2, PATIENCE)
    computed = [deployed.ask("lookahead") for _ in range(2)]
    until(lambda: computed.append(deployed.ask("lookahead")) or len(afresh(computed)) == 2, PATIENCE)
    answers = [*computed, deployed.ask("off"), *(deployed.ask(method, stream=True) for method in ("off", "lookahead"))]
    assert len({(answer.token_ids, digest(answer)) for answer in answers}) == 1
    assert text_of_the_front(deployed) == answers[0].text
    batch(deployed, "killed", kill=True)
    until(lambda: {answer.receipt.receipt_id for answer in answers if answer.receipt} <= deployed.logged(), PATIENCE)
    assert deployed.kolm("ledger", "verify").returncode == 0


def text_of_the_front(deployed: Deployed) -> str:
    """The answer of the HTTP front before the proxy to the same request."""
    http = openai.DefaultHttpxClient(trust_env=False)
    url = f"http://{deployed.kolm.addresses.http}/v1"
    with openai.OpenAI(base_url=url, api_key="any", http_client=http) as client:
        (model,) = client.models.list()
        answer = client.completions.create(
            model=model.id, prompt=PROMPT, max_tokens=24, temperature=0.8, seed=7, extra_body={"ignore_eos": True}
        )
    return answer.choices[0].text


def afresh(answers: list[Completion]) -> list[Completion]:
    """Answers of replicas that had not seen the prompt: others have its blocks in their cache."""
    return [answer for answer in answers if answer.usage.cached_prompt_tokens == 0]


def digest(answer: Completion) -> str:
    """The receipt's digest of the computation: each token, and the bits of its two best logits."""
    assert answer.receipt is not None
    document = read_document(Envelope.from_bytes(answer.receipt.envelope))
    assert isinstance(document, Receipt)
    return document.output.stream_digest


def batch(deployed: Deployed, name: str, *, kill: bool = False) -> None:
    """Many requests, during which a node may die: every one has its answer, and its receipt is in the log."""
    sampling = SamplingParams(max_tokens=400, temperature=1.0, ignore_eos=True)
    with Runtime.connect(deployed.kolm.addresses.generation) as runtime, ThreadPoolExecutor(32) as pool:

        def ask(number: int) -> str:
            for _ in range(30):
                try:
                    answer = runtime.serve(
                        Request(prompt=f"{name} {number}", sampling=replace(sampling, seed=number)),
                        spec_decode=SpecDecodeConfig(),
                    )
                except (ResourceExhausted, Unavailable) as refused:
                    time.sleep(refused.retry_after or 1.0)
                    continue
                assert answer.receipt is not None
                return answer.receipt.receipt_id
            raise AssertionError("no replica answers")

        asked = [pool.submit(ask, number) for number in range(LINES)]
        if kill:
            next(as_completed(asked)).result()
            deployed.cluster.remove_node(deployed.other, allow_graceful=False)
            assert not all(each.done() for each in asked), "the batch was over before the node died"
        given = {each.result(PATIENCE) for each in asked}
    assert len(given) == LINES
    until(lambda: given <= deployed.logged(), PATIENCE)
