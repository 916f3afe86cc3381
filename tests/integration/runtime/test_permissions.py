"""Every RPC of every service, with every role and with none: through a real server, before any servicer."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import grpc
import pytest

import kolm
from services.runtime.access import PERMISSIONS, Access
from services.runtime.credentials import ROLES, Role, write_principals
from services.runtime.server import Mount
from tests.access import token_of
from tests.serving import Served, serving

MODULES = {
    name: importlib.import_module(name)
    for _, name, _ in pkgutil.walk_packages(kolm.__path__, "kolm.")
    if name.endswith("_pb2")
}
SERVICES = {s.full_name: s for module in MODULES.values() for s in module.DESCRIPTOR.services_by_name.values()}
RPCS = {f"/{service.full_name}/{rpc.name}": rpc for service in SERVICES.values() for rpc in service.methods}
PASSED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK)  # telemetry is there on every server
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
def served(file: Path) -> Iterator[Served]:
    """Servicers that implement nothing: whoever gets past the interceptor is told so."""
    mounts = [bare(name, module) for name, module in MODULES.items() if module.DESCRIPTOR.services_by_name]
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
        list(channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=60))
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
            channel.unary_unary("/kolm.ledger.v1.LedgerService/EraseContent")(b"", metadata=(("kolm-role", role),))
        assert caught.value.code() in REFUSED  # type: ignore[attr-defined]
