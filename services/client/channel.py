"""The connection of a client: address, deadlines, sizes, health; its messages as plain values.

Every failure becomes a KolmError.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.client.errors import (
    DeadlineExceeded,
    FieldViolation,
    InvalidArgument,
    Unavailable,
    decode_error,
    decoded_errors,
)
from services.client.identity import ClientTls, Metadata, credentials, is_local

_log = logging.getLogger(__name__)


_HTTPS_PORT = 443


LARGEST_BYTES = 8 * 1024 * 1024
"""The largest request that this client sends: a generation server's --max-message by default."""

_LONGEST_SECONDS = 1e9

_Response = TypeVar("_Response")
_Value = TypeVar("_Value")

_LOOKUPS = ("GetModelInfo", "GetLoad", "Tokenize", "Detokenize")
"""Calls that the channel repeats by itself. Generations are not repeated, because each has its own receipt."""
_RETRIES = {
    "name": [{"service": "kolm.generation.v1.GenerationService", "method": name} for name in _LOOKUPS],
    "retryPolicy": {
        "maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}  # fmt: skip

KEEPALIVE = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000))
"""A server that vanished without a FIN is noticed within 30 s of a call, and the next call connects again; without this
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
"""Options of every channel to a kolm server."""

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A name for gRPC, and the credentials of a channel to it: None for a channel without TLS."""

    target: str
    credentials: grpc.ChannelCredentials | None

    @property
    def exposed(self) -> bool:
        """Whether calls can be read on the network: no TLS, and another machine."""
        return self.credentials is None and not is_local(self.target)


def endpoint(target: str, tls: ClientTls | None = None) -> Endpoint:
    """`https://host[:port]` is TLS, `http://host:port` is not; host:port and gRPC's own names are TLS if `tls` has
    files. `tls` None is the process's. Raises InvalidArgument for other URLs, and for unusable TLS files.
    """
    tls = ClientTls.of_process() if tls is None else tls
    scheme = target.partition("://")[0]
    if scheme not in ("http", "https"):
        return Endpoint(target, _credentials(tls) if tls.given else None)
    try:
        url = urlsplit(target)
        host, port = url.hostname, url.port or (_HTTPS_PORT if scheme == "https" else None)
    except ValueError:
        host = port = None
    if not host or port is None or url.path not in ("", "/") or url.query or url.username:
        raise _refused("target", f"expected host:port or {scheme}://host:port, got {target}")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Endpoint(place, _credentials(tls) if scheme == "https" else None)


def _credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    try:
        tls.context()  # gRPC would only report that it cannot connect
        ca, cert, key = (None if path is None else path.read_bytes() for path in (tls.ca, tls.cert, tls.key))
    except OSError as error:
        raise _refused("tls", str(error)) from None
    return grpc.ssl_channel_credentials(ca, key, cert)


def _refused(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {problem}", reason="TLS_SETTINGS", violations=(FieldViolation(field, problem),))


def check_size(request: Message) -> None:
    """Raises InvalidArgument, naming the largest field, for a request over `LARGEST_BYTES`."""
    size = request.ByteSize()
    if size <= LARGEST_BYTES:
        return
    field = _largest(request)
    problem = f"the request has {size:,} bytes, most of them here; expected at most {LARGEST_BYTES:,} in all"
    violations = (FieldViolation(field, problem),)
    raise InvalidArgument(f"{field}: {problem}", reason="MESSAGE_TOO_LARGE", violations=violations)


def _largest(message: Message) -> str:
    """The path of the field with the most bytes, down to a field that is not a message."""
    sizes = {field.name: (_bytes(value), value) for field, value in message.ListFields()}
    name = max(sizes, key=lambda each: sizes[each][0])
    value = sizes[name][1]
    return f"{name}.{_largest(value)}" if isinstance(value, Message) else name


def _bytes(value: Any) -> int:
    """The approximate size of a value; items of one size are not counted one by one."""
    if isinstance(value, Message):
        return value.ByteSize()
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, int | float):
        return 8
    if isinstance(value, Mapping) or isinstance(value[0], int | float):
        return 16 * len(value)
    return sum(map(_bytes, value))


def call_metadata(where: Endpoint, token: str | None) -> Metadata:
    """The metadata of `identity.credentials`; warns once for each target that gets a token without TLS."""
    metadata = credentials(where.target, token)
    if metadata and where.exposed and where.target not in _warned:
        _warned.add(where.target)
        _log.warning("sending a token to %s without TLS: it can be read on the network", where.target)
    return metadata


def _channel(where: Endpoint) -> grpc.Channel:
    if where.credentials is None:
        return grpc.insecure_channel(where.target, options=OPTIONS)
    return grpc.secure_channel(where.target, where.credentials, options=OPTIONS)


def async_channel(where: Endpoint, options: Sequence[tuple[str, object]]) -> grpc.aio.Channel:
    """A channel of the running event loop."""
    if where.credentials is None:
        return grpc.aio.insecure_channel(where.target, options=options)
    return grpc.aio.secure_channel(where.target, where.credentials, options=options)


class Connection:
    """A channel to one server. Safe to use from several threads; close it once."""

    def __init__(self, target: str, token: str | None = None, wait: float = 0.0, tls: ClientTls | None = None) -> None:
        """`target` is host:port, https://host:port or any gRPC name; TLS as `endpoint` has it, `token` as in
        `services.client.identity`.

        `wait` > 0 waits that long for the server, else connects lazily. Raises Unavailable after `wait` seconds,
        InvalidArgument for unusable TLS files.
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
        return call_metadata(self._where, self._token)

    def wait_ready(self, timeout: float) -> None:
        """Return once the server takes connections. Raises Unavailable after `timeout` seconds."""
        try:
            grpc.channel_ready_future(self.channel).result(timeout=deadline(timeout))
        except grpc.FutureTimeoutError:
            raise not_ready(self.target, timeout) from None

    def call(self, method: Callable[..., _Response], request: Any, timeout: float | None) -> _Response:
        """One unary call; `timeout` in seconds, None for no deadline."""
        check_size(request)
        with decoded_errors():
            return method(request, timeout=deadline(timeout), metadata=self.metadata)

    def call_with_metadata(
        self, method: Any, request: Any, timeout: float | None
    ) -> tuple[Any, dict[str, str | bytes]]:
        """One unary call, with its initial metadata, which grpc hands over together with the answer."""
        check_size(request)
        with decoded_errors():
            answer, call = method.with_call(request, timeout=deadline(timeout), metadata=self.metadata)
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
        """Whether a service serves ("" is the whole server), by grpc.health.v1; False without an answer."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            return serves(self.call(stub.Check, health_pb2.HealthCheckRequest(service=service), timeout))
        except (Unavailable, DeadlineExceeded):
            return False

    def close(self) -> None:
        """Cancel running calls and disconnect. Closing twice changes nothing."""
        self.channel.close()


class Client:
    """The client of one service of a server, over a connection of its own; leaving its `with` block disconnects."""

    service: ClassVar[str]
    seconds: ClassVar[float]
    """Default `timeout` of a unary call, in seconds."""
    stub: ClassVar[Any]
    """The generated class of its calls."""

    _stub: Any

    def __init__(self, connection: Connection, timeout: float | None = None) -> None:
        self.connection = connection
        self._timeout = self.seconds if timeout is None else timeout
        self._stub = type(self).stub(connection.channel)

    @classmethod
    def connect(
        cls, target: str, *, wait: float = 0.0, timeout: float | None = None, token: str | None = None,
        tls: ClientTls | None = None,
    ) -> Self:  # fmt: skip
        """Connect as `Connection` does: waits `wait` seconds for the server, or connects lazily."""
        return cls(Connection(target, token, wait, tls), timeout)

    def serving(self, timeout: float = 5.0) -> bool:
        """Whether the server answers that it serves."""
        return self.connection.serving(self.service, timeout)

    def close(self) -> None:
        """Cancel running calls and disconnect."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., _Response], request: Any) -> _Response:
        return self.connection.call(method, request, self._timeout)

    def _pages(self, method: Callable[..., _Response], request: Any) -> Iterator[_Response]:
        return self.connection.pages(method, request, self._timeout)


def not_ready(target: str, seconds: float) -> Unavailable:
    """The error about a server that did not take connections in time."""
    return Unavailable(f"no server at {target} within {seconds:g} s")


def serves(answer: health_pb2.HealthCheckResponse) -> bool:
    """Whether the health status is SERVING."""
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


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


class AsyncStream(Generic[_Value]):
    """The values of a server stream, in order. Leaving its `async with` block, or `close`, cancels the call."""

    def __init__(self, call: Any, convert: Callable[[Any], _Value]) -> None:
        self._call = call
        self._convert = convert

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Value:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise decode_error(error) from None
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._convert(message)

    def close(self) -> None:
        """Cancel the call; the server stops working on it."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def plain_value(kind: type[_Value], message: Message, **members: Any) -> _Value:
    """The dataclass `kind` with these members, and with the fields of `message` that have the names of others.

    An `optional` field that is absent becomes None, a repeated one a tuple, a map a dict, a message the dataclass of
    the member's annotation (None only if that allows it). Enums are members, which the caller converts.
    """
    hashed: Any = kind
    found = {name: read(message) for name, read in _readers(hashed, message.DESCRIPTOR, tuple(members))}
    return kind(**members, **found)


@cache
def _readers(
    kind: type[Any], descriptor: Descriptor, without: tuple[str, ...]
) -> tuple[tuple[str, Callable[[Message], Any]], ...]:
    """Readers of the members of a dataclass that are fields of a message."""
    held = descriptor.fields_by_name
    names = [each.name for each in fields(kind) if each.name in held and each.name not in without]
    return tuple((name, _reader(held[name], kind)) for name in names)


def deadline(timeout: float | None) -> float | None:
    """The timeout for gRPC: seconds that its 64-bit nanoseconds do not hold are in the past for it."""
    return None if timeout is None else min(timeout, _LONGEST_SECONDS)


def optional(message: Message, name: str) -> Any:
    """The value of an `optional` field, None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def _reader(field: FieldDescriptor, kind: type[Any]) -> Callable[[Message], Any]:
    name, value = field.name, attrgetter(field.name)
    if field.message_type is not None and not field.is_repeated:
        inner, may_lack = _named(kind.__module__, kind.__annotations__[name])
        return lambda message: plain_value(inner, value(message)) if not may_lack or message.HasField(name) else None
    if field.has_presence:
        return lambda message: optional(message, name)
    if not field.is_repeated:
        return value
    if field.message_type is None:
        return lambda message: tuple(value(message))
    if field.message_type.GetOptions().map_entry:
        return lambda message: dict(value(message))
    inner, _ = _named(kind.__module__, kind.__annotations__[name])
    return lambda message: tuple(plain_value(inner, each) for each in value(message))


@cache
def _named(module: str, annotation: str) -> tuple[type[Any], bool]:
    """The dataclass that an annotation names, and whether it may be None."""
    words = re.findall(r"\w+", annotation)
    found = (vars(sys.modules[module]).get(word) for word in words)
    return next(each for each in found if isinstance(each, type) and is_dataclass(each)), "None" in words
