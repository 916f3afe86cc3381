"""An S3 server of the tests' own, on loopback: moto's, in a process of its own, which keeps everything in memory."""

import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

REQUIRED = "KOLM_TESTS_NEED_S3"
"""Set if a missing S3 server is a failure and not a reason to skip (continuous integration)."""

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "no secret"}
"""Credentials in a client's environment; the server takes any."""

# Ends when its stdin does, so that it never outlives the tests.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


class S3Missing(Exception):
    """This environment has no S3 server."""


@contextmanager
def running_s3() -> Iterator[str]:
    """The server's endpoint, http://127.0.0.1:port. Raises S3Missing."""
    if any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors")):
        raise S3Missing("no S3 server in this environment (pip install 'moto[s3]' flask flask-cors)")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError("the S3 server ended instead of serving")
            yield f"http://{address}"
        finally:
            process.kill()


def make_bucket(endpoint: str, name: str) -> None:
    """An empty bucket."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=60):
        return
