"""`kolm serve http` as a process: it starts without a generation server, says so, and stops when told to."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.certificates import Certificates
from tests.processes import started


def get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@contextmanager
def served(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address; killed at the end if it still runs."""
    flags = ["--generation", "127.0.0.1:1", "--listen", "127.0.0.1:0", *more]
    command = [sys.executable, "-m", "services.cli", "serve", "http", *flags]
    with started(command, folder / "ready") as served:
        yield served


def test_a_generation_server_that_is_away_is_said_to_be_away(tmp_path: Path) -> None:
    with served(tmp_path) as (process, address):
        status, answer = get(address, "/health")
        assert (status, json.loads(answer)) == (503, {"status": "unavailable"})
        status, answer = get(address, "/v1/models")
        assert (status, set(json.loads(answer))) == (503, {"error"})
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, "http stopped" in said) == (0, True), said


def test_metrics_are_where_scrapers_of_openai_servers_look(tmp_path: Path) -> None:
    with served(tmp_path) as (_, address):
        assert get(address, "/health")[0] == 503
        status, page = get(address, "/metrics")
    assert status == 200
    assert 'kolm_http_requests_total{method="GET",route="/health",status="503"} 1.0' in page
    assert 'kolm_build_info{service="http"' in page


def test_silent_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    with served(tmp_path, "--max-requests", "1") as (_, address), ExitStack() as idle:
        host, _, port = address.rpartition(":")
        assert get(address, "/metrics")[0] == 200
        silent = [idle.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(12)]
        assert get(address, "/metrics")[0] == 200
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
