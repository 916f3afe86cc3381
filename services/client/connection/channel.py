"""The connection under a client: address, deadlines, metadata, health. Every failure becomes a KolmError."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.client.connection.endpoint import Endpoint, endpoint
from services.client.connection.message_size import check_size
from services.client.connection.tls import ClientTls
from services.client.connection.token import Metadata, credentials
from services.client.connection.traced_channel import traced
from services.client.errors import DeadlineExceeded, Unavailable, decode_error, decoded_errors

_log = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_Value = TypeVar("_Value")

_LOOKUPS = ("GetModelInfo", "GetLoad", "Tokenize", "Detokenize")
"""Calls that the channel repeats by itself. Generations are not among them: each one has a receipt of its own."""
_RETRIES = {
    "name": [{"service": "kolm.generation.v1.GenerationService", "method": name} for name in _LOOKUPS],
    "retryPolicy": {
        "maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}  # fmt: skip

KEEPALIVE = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000))
"""A server that vanished without a FIN is noticed within 30 s of a call, and the next call connects anew; without this
TCP would try for a quarter of an hour. Servers take a ping each 10 s.
"""

OPTIONS = (
    *KEEPALIVE,
    ("grpc.service_config", json.dumps({"methodConfig": [_RETRIES]})),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.lb_policy_name", "round_robin"),  # replicas behind one dns:/// name
    ("grpc.enable_http_proxy", 0),  # servers on this host or in this cluster are not behind the web's proxy
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
"""Of every channel to a kolm server."""


_warned: set[str] = set()


def shown_to(where: Endpoint, token: str | None) -> Metadata:
    """`connection.token.credentials`; says once for each target that a token goes there in the clear."""
    metadata = credentials(where.target, token)
    if metadata and where.exposed and where.target not in _warned:
        _warned.add(where.target)
        _log.warning("a secret goes to %s without TLS: everybody on the way can read it", where.target)
    return metadata


def _channel(where: Endpoint) -> grpc.Channel:
    if where.credentials is None:
        return traced(grpc.insecure_channel(where.target, options=OPTIONS))
    return traced(grpc.secure_channel(where.target, where.credentials, options=OPTIONS))


def async_channel(where: Endpoint, options: Sequence[tuple[str, object]]) -> grpc.aio.Channel:
    """A channel of the running event loop."""
    if where.credentials is None:
        return traced(grpc.aio.insecure_channel(where.target, options=options))
    return traced(grpc.aio.secure_channel(where.target, where.credentials, options=options))


class Connection:
    """A channel to one server. Safe to use from several threads; close it once."""

    def __init__(self, target: str, token: str | None = None, wait: float = 0.0, tls: ClientTls | None = None) -> None:
        """`target` is host:port, https://host:port or any gRPC name; TLS as `connection.endpoint` has it, `token` as
        `connection.token`.

        `wait` > 0 waits that long for the server, else connects lazily. Raises Unavailable after `wait` seconds,
        InvalidArgument for TLS files of no use.
        """
        self.target = target
        self._token = token
        self._where = endpoint(target, tls)
        self.channel = _channel(self._where)
        if wait > 0:
            self.wait_ready(wait)

    @property
    def metadata(self) -> Metadata:
        """The metadata of each call: the token. Raises Unauthenticated for a token file that cannot be read."""
        return shown_to(self._where, self._token)

    def wait_ready(self, timeout: float) -> None:
        """Return once the server takes connections. Raises Unavailable after `timeout` seconds."""
        try:
            grpc.channel_ready_future(self.channel).result(timeout=timeout)
        except grpc.FutureTimeoutError:
            raise Unavailable(f"no server at {self.target} within {timeout:g} s", reason="UNAVAILABLE") from None

    def call(self, method: Callable[..., _Response], request: Any, timeout: float | None) -> _Response:
        """One unary call; `timeout` in seconds, None for no deadline."""
        check_size(request)
        with decoded_errors():
            return method(request, timeout=timeout, metadata=self.metadata)

    def call_with_metadata(
        self, method: Any, request: Any, timeout: float | None
    ) -> tuple[Any, dict[str, str | bytes]]:
        """One unary call, with its initial metadata, which grpc hands over together with the answer."""
        check_size(request)
        with decoded_errors():
            answer, call = method.with_call(request, timeout=timeout, metadata=self.metadata)
            return answer, dict(call.initial_metadata())

    def pages(self, method: Callable[..., _Response], request: Any, timeout: float | None) -> Iterator[_Response]:
        """The answers of a list, each page as the iteration gets there (AIP-158); sets the request's `page_token`."""
        while True:
            page: Any = self.call(method, request, timeout)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def serving(self, service: str = "", timeout: float = 5.0) -> bool:
        """Whether a service serves ("" is the whole server), by grpc.health.v1; False if nobody answers."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            answer = self.call(stub.Check, health_pb2.HealthCheckRequest(service=service), timeout)
        except (Unavailable, DeadlineExceeded):
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Cancel running calls and disconnect. Closing twice changes nothing."""
        self.channel.close()


class Stream(Generic[_Value]):
    """The values of a server stream, in order. Leaving its `with` block, or `close`, cancels the call.

    After `close` the iteration ends without an error. Iterate from one thread; `close` from any.
    """

    def __init__(self, call: Any, convert: Callable[[Any], _Value]) -> None:
        self._call = call
        self._convert = convert
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Value:
        try:
            return self._convert(next(self._call))
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise decode_error(error) from None

    def close(self) -> None:
        """Cancel the call; the server stops working on it."""
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
