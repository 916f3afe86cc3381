"""Every RPC of every service, with every role and with none: through a real server, before any servicer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kolm.generation.v1 import generation_pb2, generation_pb2_grpc
from kolm.ledger.v1 import ledger_pb2, ledger_pb2_grpc
from kolm.registry.v1 import registry_pb2, registry_pb2_grpc
from kolm.telemetry.v1 import telemetry_pb2
from services.runtime.access.access import Access
from services.runtime.access.permissions import PERMISSIONS
from services.runtime.access.principal import ROLES, Role
from services.runtime.access.principals_file import write_principals
from services.runtime.server import Mount
from tests.access import token_of
from tests.serving import Served, serving

SERVICES = [
    service
    for module in (generation_pb2, ledger_pb2, registry_pb2, telemetry_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
RPCS = {f"/{service.full_name}/{rpc.name}": rpc for service in SERVICES for rpc in service.methods}
PASSED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK)  # telemetry is there on every server
REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("access") / "principals.json"
    write_principals(file, [])
    return file


@pytest.fixture(scope="module")
def served(file: Path) -> Iterator[Served]:
    """Servicers that implement nothing: whoever gets past the interceptor is told so."""
    add = (
        lambda s: generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            generation_pb2_grpc.GenerationServiceServicer(), s
        ),
        lambda s: ledger_pb2_grpc.add_LedgerServiceServicer_to_server(ledger_pb2_grpc.LedgerServiceServicer(), s),
        lambda s: registry_pb2_grpc.add_RegistryServiceServicer_to_server(
            registry_pb2_grpc.RegistryServiceServicer(), s
        ),
    )
    mounts = [Mount(service.full_name, each) for service, each in zip(SERVICES, add, strict=False)]
    with serving(*mounts, access=Access(file)) as running:
        yield running


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel


@pytest.fixture(scope="module")
def tokens(file: Path) -> dict[Role, str]:
    return {role: token_of(file, role) for role in ROLES}


def code_of(channel: grpc.Channel, path: str, token: str | None) -> grpc.StatusCode:
    """The status of a call with an empty message."""
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    try:
        # Streams, as far as the wire is concerned, so that one way to call does for every RPC.
        list(channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=30))
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return, attr-defined]
    return grpc.StatusCode.OK


def test_every_rpc_stands_in_the_table_and_nothing_else_does() -> None:
    ours = {path for path in PERMISSIONS if path.startswith("/kolm.")}
    assert ours == set(RPCS)


@pytest.mark.parametrize("path", RPCS)
def test_each_rpc_takes_the_roles_of_its_line_and_refuses_every_other(
    channel: grpc.Channel, tokens: dict[Role, str], path: str
) -> None:
    needed = PERMISSIONS[path]
    for role, token in tokens.items():
        allowed = needed is None or role in needed
        expected = PASSED if allowed else (grpc.StatusCode.PERMISSION_DENIED,)
        assert code_of(channel, path, token) in expected, role
    nobody = PASSED if needed is None else (grpc.StatusCode.UNAUTHENTICATED,)
    assert code_of(channel, path, None) in nobody
    if needed is not None:
        assert code_of(channel, path, "kolm_a-guess") == grpc.StatusCode.UNAUTHENTICATED


def test_the_old_role_means_nothing(channel: grpc.Channel) -> None:
    for role in ("auditor", "operator", "publisher"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/kolm.generation.v1.GenerationService/Replay")(b"", metadata=(("kolm-role", role),))
        assert caught.value.code() in REFUSED  # type: ignore[attr-defined]
