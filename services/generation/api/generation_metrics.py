"""Metrics of the generation service, and its log line for each request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from services.generation.engine.backend import Backend
from services.generation.engine.events import Chunk, Finished, Outcome
from services.generation.engine.prefix_disk import PrefixFolder
from services.generation.receipts.outbox import Outbox
from services.generation.requests.halts import HaltBoard
from services.generation.requests.resolution import Identity, Resolved
from services.runtime.metrics import Metrics, Reading

_FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # with vLLM's names
_log = logging.getLogger(__name__)


class GenerationMetrics:
    """Metrics of one server with one model. Requests are observed on the event loop."""

    def __init__(self, registry: CollectorRegistry, identity: Identity) -> None:
        metrics = Metrics(registry)
        self._metrics, self._model = metrics, identity.name
        self.first = metrics.histogram("vllm:time_to_first_token_seconds").labels(self._model)
        self.next = metrics.histogram("vllm:inter_token_latency_seconds").labels(self._model)
        self._whole = metrics.histogram("vllm:e2e_request_latency_seconds").labels(self._model)
        self._queue = metrics.histogram("vllm:request_queue_time_seconds").labels(self._model)
        self._prefill = metrics.histogram("vllm:request_prefill_time_seconds").labels(self._model)
        self._decode = metrics.histogram("vllm:request_decode_time_seconds").labels(self._model)
        self._prompt = metrics.counter("vllm:prompt_tokens").labels(self._model)
        self._queries = metrics.counter("vllm:prefix_cache_queries").labels(self._model)
        self._hits = metrics.counter("vllm:prefix_cache_hits").labels(self._model)
        self._ended = metrics.counter("vllm:request_success")
        self._refused = metrics.counter("kolm_requests_refused")
        loaded = ",".join(each.name for each in identity.adapters)
        metrics.read("vllm:lora_requests_info", lambda: {(str(len(identity.adapters)), loaded, ""): time.time()})
        if identity.engine is None:
            metrics.read("kolm_profile_proven", lambda: {(identity.profile_cid,): float(identity.probe_passed)})

    def watch(self, engine: Backend, outbox: Outbox, halts: HaltBoard, prefixes: PrefixFolder | None = None) -> None:
        """Read these at each scrape."""
        self._watch_engine(engine)
        counts = prefixes.counts if prefixes else {}
        self._metrics.read("kolm_prefix_disk_bytes", lambda: prefixes.bytes if prefixes else 0)
        self._metrics.read("kolm_prefix_disk_files", lambda: {(each,): counts[each] for each in tuple(counts)})
        self._metrics.read("kolm_outbox_pending", lambda: outbox.pending)
        self._metrics.read("kolm_outbox_refused", lambda: outbox.refused)
        self._metrics.read("kolm_halts_known", lambda: halts.known)
        self._metrics.read("kolm_halt_epoch", lambda: halts.epoch)
        self._metrics.read("kolm_halted", lambda: {(scope.method,): 1.0 for scope in halts.scopes})

    def _watch_engine(self, engine: Backend) -> None:
        def of_model(name: str, value: Callable[[], float]) -> None:
            self._metrics.read(name, lambda: {(self._model,): value()})

        def usage() -> float:
            load = engine.load()
            return load.blocks_used / load.blocks_total

        def by_position() -> Reading:
            accepted = enumerate(tuple(engine.totals.accepted_per_depth))
            return {(self._model, str(depth)): count for depth, count in accepted}

        of_model("vllm:num_requests_running", lambda: engine.load().running)
        of_model("vllm:num_requests_waiting", lambda: engine.load().waiting)
        of_model("vllm:num_preemptions", lambda: engine.load().preemptions)
        of_model("vllm:kv_cache_usage_perc", usage)
        of_model("vllm:generation_tokens", lambda: engine.totals.tokens)
        of_model("vllm:spec_decode_num_drafts", lambda: engine.totals.drafts)
        of_model("vllm:spec_decode_num_draft_tokens", lambda: engine.totals.draft_tokens)
        of_model("vllm:spec_decode_num_accepted_tokens", lambda: engine.totals.accepted_tokens)
        self._metrics.read("vllm:spec_decode_num_accepted_tokens_per_pos", by_position)
        self._metrics.read(
            "kolm_sequence_passes",
            lambda: {(method,): count for method, count in tuple(engine.totals.by_method.items())},
        )

    def arrived(self) -> RequestTimes:
        """Timers of a request that has just arrived."""
        return RequestTimes(self)

    def refused(self, reason: str) -> None:
        """Count a refused request by its reason: `quota_tokens`, `queue_full` and the like."""
        self._refused.labels(reason).inc()

    def ended(self, finished: Finished, seconds: float) -> None:
        """Observe the end of a sequence, `seconds` after its request arrived."""
        outcome, counts = finished.outcome, finished.outcome.metrics
        self._whole.observe(seconds)
        self._queue.observe(counts.queue_seconds)
        self._prefill.observe(counts.prefill_seconds)
        self._decode.observe(counts.decode_seconds)
        self._prompt.inc(counts.prompt_tokens)
        self._queries.inc(counts.prompt_tokens)
        self._hits.inc(counts.cached_prompt_tokens)
        self._ended.labels(self._model, _FINISHED[outcome.finish_reason]).inc()


class RequestTimes:
    """The sequences of one request, each with the time at which it last released tokens."""

    def __init__(self, metrics: GenerationMetrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._last: dict[int, float] = {}  # by choice

    def observe(self, event: Chunk | Finished) -> None:
        """Observe an event of one of the sequences."""
        now = time.perf_counter()
        if isinstance(event, Finished):
            self._metrics.ended(event, now - self._arrived)
        elif event.token_ids:
            timed = self._metrics.next if event.choice in self._last else self._metrics.first
            timed.observe(now - self._last.get(event.choice, self._arrived))
            self._last[event.choice] = now


def log_request(resolved: Resolved, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Log one finished request, without its text. `outcomes`: of all choices; `seconds`: until the last choice ended.

    Counts are sums over the choices, except the prompt's; times are of the slowest choice.
    """
    counts = [outcome.metrics for outcome in outcomes]
    event = {
        "id": resolved.request_id,
        "tenant": resolved.tenant,
        "method": resolved.decision.method,
        "outcome": ",".join(outcome.finish_reason for outcome in outcomes),
        "prompt_tokens": len(resolved.prompt),
        "cached_prompt_tokens": max(each.cached_prompt_tokens for each in counts),
        "output_tokens": sum(each.output_tokens for each in counts),
        "draft_tokens": sum(each.num_draft_tokens for each in counts),
        "accepted_tokens": sum(each.num_accepted_tokens for each in counts),
        "queue_seconds": round(max(each.queue_seconds for each in counts), 4),
        "prefill_seconds": round(max(each.prefill_seconds for each in counts), 4),
        "decode_seconds": round(max(each.decode_seconds for each in counts), 4),
        "seconds": round(seconds, 4),
    }
    _log.info("request", extra={"event": event})
