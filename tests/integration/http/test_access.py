"""Callers of the front: who may call, from where, and pages of other sites."""

import asyncio
import http.client
import json
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import httpx2
import openai
import pytest

from services.cli.up.local_services import SERVICE_ROLES
from services.client.errors import Unauthenticated
from services.client.generation.runtime import AsyncRuntime
from services.runtime.access import Access
from services.runtime.credentials import edited_principals, new_token, write_principals
from tests.access import Certificates, token_of, without_credential
from tests.forked import Forked
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.integration.http.front import fronting
from tests.serving import fetched, serving, started


@asynccontextmanager
async def forwarded(port: int) -> AsyncIterator[int]:
    """The port of a proxy that adds nothing to requests, as nginx with a plain proxy_pass or grpc_pass."""

    answering: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with closing_writer(writer):
            there = await asyncio.open_connection("127.0.0.1", port)
            async with closing_writer(there[1]):
                await asyncio.gather(forward(reader, there[1]), forward(there[0], writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.ensure_future(answer(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.sleep(0.05)  # what was accepted last has a task by then
    for each in answering:  # a channel of gRPC keeps its connection for a while
        each.cancel()
    await asyncio.gather(*answering, return_exceptions=True)


@asynccontextmanager
async def closing_writer(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def status(port: int, token: str | None, **headers: str) -> int:
    """The answer to a chat."""
    sent = headers | ({} if token is None else {"authorization": f"Bearer {token}"})
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=sent)
        return answer.status_code


async def refusal(address: str, token: str) -> str:
    async with AsyncRuntime.connect(address, token=token) as runtime:
        with pytest.raises(Unauthenticated) as refused:
            await runtime.model_info()
        return refused.value.reason


async def test_without_principals_a_made_up_token_is_a_bad_one_and_no_address_is_a_token() -> None:
    local = new_token()
    with serving(mount(ScriptedGeneration()), access=Access(local=local)) as served:
        async with fronting(served.address) as front, forwarded(front.port) as proxy:
            assert await status(front.port, local) == await status(proxy, local) == 200
            for port in (front.port, proxy):
                for token in (None, "unused", "kolm_x", "kolm_a\tb", new_token()):
                    assert await status(port, token) == 401
                    assert await status(port, token, **{"x-forwarded-for": "127.0.0.1"}) == 401
            with pytest.raises(openai.AuthenticationError) as refused:
                await front.client.models.list()
            assert refused.value.code == "token_required"


async def test_a_proxy_that_adds_no_header_is_not_the_own_machine_over_grpc_either() -> None:
    local = new_token()
    with serving(mount(ScriptedGeneration()), access=Access(local=local)) as served:
        async with forwarded(int(served.address.rpartition(":")[2])) as proxy:
            for address in (served.address, f"127.0.0.1:{proxy}"):
                assert await refusal(address, "") == "TOKEN_REQUIRED"
                assert await refusal(address, "kolm_x") == "BAD_TOKEN"
                async with AsyncRuntime.connect(address, token=local) as runtime:
                    assert (await runtime.model_info()).model


async def test_every_caller_gets_in_if_the_file_allows_anybody(tmp_path: Path) -> None:
    file = tmp_path / "principals.json"
    write_principals(file, [without_credential("generate")])
    token = token_of(file, "generate")
    with serving(mount(ScriptedGeneration()), access=Access(file)) as served:
        async with fronting(served.address) as front, forwarded(front.port) as proxy:
            assert await status(front.port, None) == await status(proxy, "unused") == 200
            assert await status(front.port, "kolm_x") == 401
            with edited_principals(file) as credentials:
                credentials[:] = [each for each in credentials if not each.anybody]
            assert await status(front.port, None) == 401  # though it has been let in before
            assert await status(front.port, token) == 200


async def test_the_front_s_own_token_is_for_what_routers_ask_and_stands_for_no_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_principals(file := tmp_path / "principals.json", ())
    (own := tmp_path / "own").write_text(token_of(file, *SERVICE_ROLES["http"]))
    monkeypatch.delenv("KOLM_TOKEN")
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(own))
    with serving(mount(ScriptedGeneration()), access=Access(file)) as served:
        async with fronting(served.address) as front, httpx2.AsyncClient(trust_env=False) as http:
            assert "vllm:num_requests_waiting{" in (await http.get(f"http://127.0.0.1:{front.port}/metrics")).text
            assert (await http.get(f"http://127.0.0.1:{front.port}/v1/models")).status_code == 401
            assert await status(front.port, None) == 401
            assert await status(front.port, own.read_text()) == 403


async def test_a_front_whose_generation_server_is_away_says_so_before_it_reads_a_body() -> None:
    async with fronting("127.0.0.1:1") as front:
        reader, writer = await front.raw(
            "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 9"
        )
        assert (await reader.readline()).split()[1] == b"503"
        writer.close()


SITE = "https://chat.example"
ASKING = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
    "access-control-request-private-network": "true",  # Chromium asks for 127.0.0.1
}


async def test_a_caller_from_elsewhere_is_asked_for_a_token_after_its_browser_has_asked() -> None:
    with serving(mount(ScriptedGeneration()), access=Access()) as served:
        await _asked_for_a_token(served.address)


async def _asked_for_a_token(generation: str) -> None:
    async with fronting(generation, allowed_origin=(SITE,)) as front, httpx2.AsyncClient(trust_env=False) as browser:
        url, proxied = f"http://127.0.0.1:{front.port}/v1/models", {"origin": SITE, "x-forwarded-for": "203.0.113.7"}
        assert (await browser.options(url, headers=proxied | ASKING)).status_code == 200
        refused = await browser.get(url, headers=proxied)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, SITE)


@contextmanager
def served(folder: Path, *more: str) -> Iterator[tuple[Forked, str]]:
    """The process and its address; killed at the end if it still runs."""
    flags = ["--generation", "127.0.0.1:1", "--listen", "127.0.0.1:0", *more]
    with started("services.http", flags, folder / "ready") as served:
        yield served


def test_a_generation_server_that_is_away_is_said_to_be_away(tmp_path: Path) -> None:
    with served(tmp_path) as (process, address):
        status, _, answer = fetched(address, "/health")
        assert (status, json.loads(answer)) == (503, {"status": "unavailable"})
        status, _, answer = fetched(address, "/v1/models")
        assert (status, set(json.loads(answer))) == (503, {"error"})
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)
        assert (process.returncode, "http stopped" in output) == (0, True), output


def test_silent_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    with served(tmp_path, "--max-requests", "1") as (_, address), ExitStack() as idle:
        host, _, port = address.rpartition(":")
        assert fetched(address, "/metrics")[0] == 200
        silent = [idle.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(12)]
        assert fetched(address, "/metrics")[0] == 200
        assert silent[0].recv(1) == b""


def test_the_front_speaks_tls_and_takes_a_renewed_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    tls = certificates.server()
    context = ssl.create_default_context(cafile=certificates.ca)
    with served(tmp_path, "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)) as (_, address):
        shown = []
        for _ in range(2):
            with closing(http.client.HTTPSConnection(address, timeout=60, context=context)) as connection:
                connection.request("GET", "/health")
                shown.append(connection.sock.getpeercert(binary_form=True))
                assert connection.getresponse().status == 503
            certificates.server()
        assert shown[0] != shown[1]
