"""Every metric that kolm exports, a server's Prometheus registry, and its endpoint. No other metric can be made.

Names that begin with `vllm:` mean what vLLM means by them: its dashboards work here. Times are seconds.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from socketserver import ThreadingMixIn
from typing import Any, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.runtime.listening import CannotListen, ServedNames, ServerTls, misdirected

Kind = Literal["counter", "gauge", "histogram"]
Exporter = Literal["every", "rpc", "http", "generation", "ledger", "auditor", "witness"]
"""The exporter: `every` process, every gRPC (`rpc`) or HTTP server, or one service."""

_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKENS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_WRITES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_M = "model_name"
_LORA = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")  # as routers read them, joined by commas

Reading = float | Mapping[tuple[str, ...], float]
"""A value, or one for each combination of labels."""

_CONNECTIONS = 16

_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
"""The codes of calls that fail by a fault of the server."""

_SECONDS = 10.0
"""How long a connection may send or take nothing, its handshake included."""


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """One metric. `buckets` are the upper bounds of a histogram."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names that an expression can ask for."""
        return tuple(self.name + ending for ending in _ENDINGS[self.kind])


def _counter(name: str, help: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name, "counter", help, labels)


def _gauge(name: str, help: str, *labels: str) -> ExportedMetric:
    return ExportedMetric(name, "gauge", help, labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> ExportedMetric:
    return ExportedMetric(name, "histogram", help, labels, buckets)


EXPORTED: Mapping[Exporter, tuple[ExportedMetric, ...]] = {
    "every": (
        _gauge("kolm_build_info", "1; its labels have service and version.", "service", "version"),
        _gauge("process_resident_memory_bytes", "Memory of the process."),
        _gauge("process_virtual_memory_bytes", "Address space of the process."),
        _counter("process_cpu_seconds", "Processor time of the process."),
        _gauge("process_open_fds", "Open files and connections of the process."),
        _gauge("process_max_fds", "The most that it may have open."),
        _gauge("process_start_time_seconds", "Unix time of its start."),
    ),
    "rpc": (
        _gauge("kolm_serving", "1 while health is SERVING."),
        _counter("kolm_rpc_calls", "Finished calls.", "service", "method", "code"),
        _histogram("kolm_rpc_seconds", "From the start of a call to its status.", _CALLS, "service", "method"),
    ),
    "http": (
        _counter("kolm_http_requests", "Answered requests.", "method", "route", "status"),
        _histogram("kolm_http_seconds", "From a request to the end of its answer.", _CALLS, "route"),
        _gauge("kolm_http_requests_in_flight", "Requests being answered."),
    ),
    "generation": (
        _gauge("vllm:num_requests_running", "Sequences in the running batch.", _M),
        _gauge("vllm:num_requests_waiting", "Sequences waiting for a place.", _M),
        _gauge("vllm:kv_cache_usage_perc", "Share of cache blocks in use, 0 to 1.", _M),
        _gauge("vllm:lora_requests_info", "Unix time; its labels list the adapters that are loaded.", *_LORA),
        _counter("vllm:num_preemptions", "Sequences put back into the queue.", _M),
        _counter("vllm:prompt_tokens", "Prompt tokens of ended sequences.", _M),
        _counter("vllm:generation_tokens", "Tokens emitted.", _M),
        _counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", _M),
        _counter("vllm:prefix_cache_hits", "Prompt tokens that were there.", _M),
        _gauge("kolm_prefix_disk_bytes", "Size of the prefix cache on the disk."),
        _counter("kolm_prefix_disk_files", "Files of it: read, written, damaged, failed, dropped.", "outcome"),
        _counter("vllm:request_success", "Ended sequences.", _M, "finished_reason"),
        _histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", _CALLS, _M),
        _histogram("vllm:inter_token_latency_seconds", "Between two releases of tokens.", _TOKENS, _M),
        _histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", _CALLS, _M),
        _histogram("vllm:request_queue_time_seconds", "Waiting for a place.", _CALLS, _M),
        _histogram("vllm:request_prefill_time_seconds", "From a place to the first token.", _CALLS, _M),
        _histogram("vllm:request_decode_time_seconds", "From the first token to the last.", _CALLS, _M),
        _counter("vllm:spec_decode_num_drafts", "Drafts verified.", _M),
        _counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", _M),
        _counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", _M),
        _counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted at a depth, from 0.", _M, "position"),
        _counter("kolm_sequence_passes", "Passes of sequences, by draft method.", "method"),
        _counter("kolm_requests_refused", "Refused for want of room: by a quota, a full queue, the ledger.", "reason"),
        _gauge("kolm_outbox_pending", "Receipts that the ledger has not confirmed."),
        _gauge("kolm_outbox_refused", "Receipts that the ledger will not take."),
        _gauge("kolm_halts_known", "1 while the ledger's halts are known; otherwise speculation is off."),
        _gauge("kolm_halt_epoch", "Halts in the ledger so far, as known here."),
        _gauge("kolm_halted", "1 for a method that is halted here.", "method"),
        _gauge("kolm_profile_proven", "1 if the probe found every row equal to its row alone.", "profile_cid"),
    ),
    "ledger": (
        _gauge("kolm_ledger_entries", "Entries in the log."),
        _gauge("kolm_ledger_takes_entries", "1 while the last write succeeded."),
        _gauge(
            "kolm_ledger_lock_losses",
            "Sessions of PostgreSQL that were lost with the writer's lock, taken again since.",
        ),
        _gauge("kolm_ledger_queue_entries", "Entries waiting to be written."),
        _histogram("kolm_ledger_batch_entries", "Entries of a transaction.", _BATCHES),
        _histogram("kolm_ledger_commit_seconds", "Committing a batch.", _WRITES),
        _histogram("kolm_ledger_guard_seconds", "Swapping the guard's head.", _WRITES),
        _histogram("kolm_ledger_sign_seconds", "Signing and recording a head.", _WRITES),
        _gauge("kolm_ledger_checkpoint_age_seconds", "Since the newest checkpoint, or the start."),
        _gauge("kolm_ledger_witness_lag_entries", "Entries that a witness has not cosigned.", "witness"),
        _gauge("kolm_ledger_witness_silent", "1: it does not cosign; 2: it reports a fork of the log.", "witness"),
        _gauge("kolm_ledger_halt_epoch", "Halts in the log so far."),
        _gauge("kolm_ledger_open_halts", "Halts without a resume."),
    ),
    "auditor": (
        _counter("kolm_auditor_verdicts", "Verdicts appended.", "outcome"),
        _histogram("kolm_auditor_replay_seconds", "Examining one receipt.", _CALLS),
        _gauge("kolm_auditor_entries_read", "Entries of the log read so far."),
        _gauge("kolm_auditor_obligations", "Receipts without a verdict: undrawn, owed, overdue.", "state"),
        _gauge("kolm_auditor_last_pass_seconds", "Since the log was last read to its end."),
    ),
    "witness": (
        _gauge("kolm_witness_cosigned_entries", "Size of the newest tree cosigned.", "log"),
        _gauge("kolm_witness_forks", "Kept proofs that a log signed two trees of one size."),
    ),
}
"""Every metric, by exporter."""

BY_NAME = {metric.name: metric for metrics in EXPORTED.values() for metric in metrics}


class Metrics:
    """Makes the metrics of the list `EXPORTED`, and no others, on one registry.

    Every method raises KeyError for a name that is not in the list.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str) -> Counter:
        listed = _listed(name, "counter")
        return Counter(listed.name, listed.help, listed.labels, registry=self._registry)

    def gauge(self, name: str) -> Gauge:
        listed = _listed(name, "gauge")
        return Gauge(listed.name, listed.help, listed.labels, registry=self._registry)

    def histogram(self, name: str) -> Histogram:
        listed = _listed(name, "histogram")
        return Histogram(listed.name, listed.help, listed.labels, registry=self._registry, buckets=listed.buckets)

    def read(self, name: str, value: Callable[[], Reading]) -> None:
        """A counter or gauge whose value is asked for at each scrape, on a thread of its own."""
        self._registry.register(_Read(BY_NAME[name], value))

    def process(self, service: str) -> None:
        """Metrics of every process."""
        ProcessCollector(registry=self._registry)
        self.gauge("kolm_build_info").labels(service, kolm_version()).set(1)


def _listed(name: str, kind: Kind) -> ExportedMetric:
    if BY_NAME[name].kind != kind:
        raise KeyError(f"{name} is a {BY_NAME[name].kind}")
    return BY_NAME[name]


def kolm_version() -> str:
    """The version of the package kolm-serve; "unknown" for a checkout that was never installed."""
    try:
        return version("kolm-serve")
    except PackageNotFoundError:
        return "unknown"


class _Read(Collector):
    def __init__(self, listed: ExportedMetric, value: Callable[[], Reading]) -> None:
        self._listed = listed
        self._value = value

    def describe(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        family, value = self._family(), self._value()
        for labels, each in (value if isinstance(value, Mapping) else {(): value}).items():
            family.add_metric(labels, each)
        return [family]

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._listed.kind == "counter" else GaugeMetricFamily
        return kind(self._listed.name, self._listed.help, labels=self._listed.labels)


def _service_and_method(path: str) -> tuple[str, str]:
    service, _, method = path.removeprefix("/").partition("/")
    return service, method


class CallMetrics:
    """Calls by method and status code, and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        metrics = Metrics(registry)
        self._calls = metrics.counter("kolm_rpc_calls")
        self._seconds = metrics.histogram("kolm_rpc_seconds")

    def begin(self, paths: Iterable[str]) -> None:
        """Export failures of these methods from 0 on: no alert rule sees an increase of a series that begins at 1."""
        for path in paths:
            for code in _FAULTS:
                self._calls.labels(*_service_and_method(path), code.name)

    def observe(self, path: str, code: grpc.StatusCode, seconds: float) -> None:
        """One finished call; `path` is gRPC's `/package.Service/Method`."""
        service, method = _service_and_method(path)
        self._calls.labels(service, method, code.name).inc()
        self._seconds.labels(service, method).observe(seconds)


@contextmanager
def metrics_endpoint(
    registry: CollectorRegistry,
    host: str,
    port: int | None,
    tls: ServerTls | None = None,
    names: ServedNames | None = None,
) -> Iterator[int | None]:
    """A block that serves `registry` at http(s)://host:port/metrics; yields the bound port. Port None serves nothing,
    names None answer to any name.

    Raises CannotListen, TlsFilesInvalid.
    """
    if port is None:
        yield None
        return
    context = None if tls is None else tls.context()
    try:
        server = _Server(host, port, context)
    except OSError:
        raise CannotListen(f"{host}:{port}") from None
    server.set_app(_named(make_wsgi_app(registry), names))
    thread = threading.Thread(target=server.serve_forever, name="metrics")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _named(app: Any, names: ServedNames | None) -> Any:
    """The WSGI application, which refuses requests for other names."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "")  # two of them come joined, which is no name
        if names is None or (names.include(host) and environ["PATH_INFO"].startswith("/")):
            answered: Iterable[bytes] = app(environ, start)
            return answered
        start("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [misdirected(host).encode()]

    return answer


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A WSGI server with a thread for each connection; a connection beyond `_CONNECTIONS` is closed immediately."""

    daemon_threads = True

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self._context = context
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(self._with_tls(request), client_address)
        except OSError:  # no TLS, or a caller without a certificate of the authority
            self.shutdown_request(request)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Errors of callers that leave or are slow are ignored."""

    def _with_tls(self, connection: socket.socket) -> socket.socket:
        """The handshake, in the connection's thread: in the server's, a slow caller would delay all others."""
        connection.settimeout(_SECONDS)
        return connection if self._context is None else self._context.wrap_socket(connection, server_side=True)
