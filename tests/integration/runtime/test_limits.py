"""Limits on callers, and the roles that may call each RPC."""

import importlib
import pkgutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

import kolm
from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.generation.v1.sampling_pb2 import SamplingParams
from services.client.errors import DeadlineExceeded, InvalidArgument, KolmError, ResourceExhausted, decoded_errors
from services.runtime import server
from services.runtime.access import PERMISSIONS, Access
from services.runtime.credentials import ROLES, Role, write_principals
from services.runtime.limits import Limits
from services.runtime.server import Mount
from tests.access import token_of
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount
from tests.serving import Served, serving

PATIENCE = 60.0  # seconds
LIMITS = Limits(message_bytes=300_000, calls=3, calls_of_caller=3)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(mount(ScriptedServicer()), limits=LIMITS) as running:
        yield running


def _channel(served: Served, **options: int) -> grpc.Channel:
    named = [(f"grpc.{name}", value) for name, value in options.items()]
    return grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1), *named])


def test_a_call_above_the_limit_is_refused_with_a_time_to_retry(served: Served) -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
    with ExitStack() as stack:
        channels = [stack.enter_context(_channel(served)) for _ in range(2)]
        endless = [GenerationServiceStub(channels[0]).GenerateStream(request) for _ in range(3)]
        assert all(next(stream).HasField("started") for stream in endless)
        with pytest.raises(ResourceExhausted) as caught, decoded_errors():
            GenerationServiceStub(channels[1]).Generate(pb.GenerateRequest())
        assert (caught.value.reason, caught.value.retry_after) == ("TOO_MANY_CALLS", 1.0)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
PING, GOAWAY = 6, 7  # types of frames, RFC 9113
ACKNOWLEDGED = 1
ENHANCE_YOUR_CALM = 11


def pinged(address: str, count: int) -> list[int]:
    """Types of the frames that answer `count` pings on a connection without calls; each ping waits for its answer."""
    host, _, port = address.rpartition(":")
    answers: list[int] = []
    with socket.create_connection((host, int(port)), PATIENCE) as connection, connection.makefile("rb") as frames:
        connection.sendall(PREFACE)
        for _ in range(count):
            connection.sendall(bytes([0, 0, 8, PING, 0, 0, 0, 0, 0]) + bytes(8))
            while len(head := frames.read(9)) == 9:
                payload = frames.read(int.from_bytes(head[:3], "big"))
                if head[3] == GOAWAY:
                    assert int.from_bytes(payload[4:8], "big") == ENHANCE_YOUR_CALM
                    return [*answers, GOAWAY]
                if head[3] == PING and head[4] == ACKNOWLEDGED:
                    answers.append(PING)
                    break
    return answers


def test_pings_without_calls_are_answered_unless_they_are_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(mount(ScriptedServicer())) as served:
        assert pinged(served.address, 9)[-1] == GOAWAY
    interval = "grpc.http2.min_ping_interval_without_data_ms"
    options = [(name, 0 if name == interval else value) for name, value in server._OPTIONS]
    monkeypatch.setattr(server, "_OPTIONS", options)
    with serving(mount(ScriptedServicer())) as served:
        assert pinged(served.address, 9) == [PING] * 9


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [(290_000, {}, None), (310_000, {}, InvalidArgument), (290_000, {"default_compression_algorithm": 2}, KolmError)],
    ids=["largest", "too large", "compressed"],
)
def test_messages_above_the_limit_and_compressed_messages_are_refused(
    served: Served, size: int, options: dict[str, int], expected: type[KolmError] | None
) -> None:
    with _channel(served, **options) as channel:
        stub = GenerationServiceStub(channel)
        if expected is None:
            assert stub.Generate(pb.GenerateRequest(prompt="x" * size)).choices
        else:
            with pytest.raises(expected), decoded_errors():
                stub.Generate(pb.GenerateRequest(prompt="x" * size))


def test_a_large_request_with_too_many_parts_is_refused(served: Served) -> None:
    """Answering a request of parts with two bytes each would take a thousand times its size in memory."""
    many = pb.ChatMessages(messages=[pb.Message()] * 40_000)
    deep = pb.ChatMessages(messages=[pb.Message(tool_calls=[pb.ToolCall()] * 40_000)])
    texts, biases = SamplingParams(stop=[""] * 40_000), SamplingParams(logit_bias=dict.fromkeys(range(17_000), 1.0))
    few = pb.ChatMessages(messages=[pb.Message(content="x" * 800)] * 100)
    with _channel(served) as channel:
        stub = GenerationServiceStub(channel)
        for request in (
            *(pb.GenerateRequest(messages=messages) for messages in (many, deep)),
            *(pb.GenerateRequest(sampling=sampling) for sampling in (texts, biases)),
        ):
            with pytest.raises(InvalidArgument) as caught, decoded_errors():
                stub.Generate(request)
            assert caught.value.reason == "TOO_MANY_PARTS"
        assert stub.Generate(pb.GenerateRequest(messages=few)).choices


def test_a_request_without_a_credential_has_to_be_short(served: Served) -> None:
    with _channel(served) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(InvalidArgument) as caught, decoded_errors():
            check(HealthCheckRequest(service="x" * 70_000).SerializeToString())
        assert caught.value.reason == "REQUEST_TOO_LARGE"


def test_a_unary_call_without_a_request_is_refused_and_one_with_a_late_request_ends() -> None:
    ended = threading.Event()
    hasty = Limits(reading_seconds=0.2)

    def held_back() -> Iterator[bytes]:
        ended.wait(60)
        yield b""

    with serving(mount(ScriptedServicer()), limits=hasty) as served, _channel(served) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Generate")
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("request",)), decoded_errors():
            call(iter([]), timeout=60)
        with pytest.raises(DeadlineExceeded) as caught, decoded_errors():
            call(held_back(), timeout=60)
        ended.set()
        assert caught.value.reason == "REQUEST_TOO_SLOW"


def test_an_old_connection_finishes_its_calls_and_the_client_opens_another() -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
    left = threading.Event()
    with serving(mount(ScriptedServicer()), limits=Limits(age_seconds=0.2)) as aging, _channel(aging) as channel:
        stub = GenerationServiceStub(channel)
        running = stub.GenerateStream(request)
        assert next(running).HasField("started")
        # Subscribed to now, the channel cannot have been ready and left before it was seen: it stays idle till a call.
        channel.subscribe(lambda state: None if state is grpc.ChannelConnectivity.READY else left.set())
        assert left.wait(60)
        assert running.is_active()
        assert stub.Generate(pb.GenerateRequest(prompt="x"), timeout=60).choices
        running.cancel()


MODULES = {
    name: importlib.import_module(name)
    for _, name, _ in pkgutil.walk_packages(kolm.__path__, "kolm.")
    if name.endswith("_pb2")
}
SERVICES = {s.full_name: s for module in MODULES.values() for s in module.DESCRIPTOR.services_by_name.values()}
RPCS = {f"/{service.full_name}/{rpc.name}": rpc for service in SERVICES.values() for rpc in service.methods}
PASSED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK)  # every server has telemetry
REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("access") / "principals.json"
    write_principals(file, [])
    return file


def bare(name: str, module: ModuleType) -> Mount:
    """The generated servicer of a module, which implements nothing."""
    (service,) = module.DESCRIPTOR.services_by_name.values()
    generated = importlib.import_module(f"{name}_grpc")
    servicer = getattr(generated, f"{service.name}Servicer")()
    add = getattr(generated, f"add_{service.name}Servicer_to_server")
    return Mount(service.full_name, lambda server: add(servicer, server))


@pytest.fixture(scope="module")
def unimplemented(file: Path) -> Iterator[Served]:
    """Servicers that implement nothing: a call that passes the interceptor is UNIMPLEMENTED."""
    mounts = [bare(name, module) for name, module in MODULES.items() if module.DESCRIPTOR.services_by_name]
    with serving(*mounts, access=Access(file)) as running:
        yield running


@pytest.fixture(scope="module")
def channel(unimplemented: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(unimplemented.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel


@pytest.fixture(scope="module")
def tokens(file: Path) -> dict[Role, str]:
    return {role: token_of(file, role) for role in ROLES}


def code_of(channel: grpc.Channel, path: str, token: str | None) -> grpc.StatusCode:
    """The status of a call with an empty message."""
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    try:
        # On the wire a unary call is a stream of one message, so this calls RPCs of every kind.
        list(channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=60))
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return, attr-defined]
    return grpc.StatusCode.OK


def test_the_permissions_have_every_rpc_and_no_other() -> None:
    ours = {path for path in PERMISSIONS if path.startswith("/kolm.")}
    assert ours == set(RPCS)


@pytest.mark.parametrize("path", RPCS)
def test_each_rpc_accepts_the_roles_in_its_permissions_and_refuses_all_others(
    channel: grpc.Channel, tokens: dict[Role, str], path: str
) -> None:
    needed = PERMISSIONS[path]
    for role, token in tokens.items():
        allowed = needed is None or role in needed
        expected = PASSED if allowed else (grpc.StatusCode.PERMISSION_DENIED,)
        assert code_of(channel, path, token) in expected, role
    anonymous = PASSED if needed is None else (grpc.StatusCode.UNAUTHENTICATED,)
    assert code_of(channel, path, None) in anonymous
    if needed is not None:
        assert code_of(channel, path, "kolm_a-guess") == grpc.StatusCode.UNAUTHENTICATED


def test_a_role_in_the_metadata_grants_nothing(channel: grpc.Channel) -> None:
    for role in ("auditor", "operator", "publisher"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/kolm.ledger.v1.LedgerService/EraseContent")(b"", metadata=(("kolm-role", role),))
        assert caught.value.code() in REFUSED  # type: ignore[attr-defined]
