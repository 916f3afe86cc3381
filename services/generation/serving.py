"""The composition root of the generation service."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from kolm.generation.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from ledger.errors import LedgerError
from ledger.keys.signer import Signer, open_signer
from ledger.keys.trusted_keys import TrustedKeys
from services.generation.api.generation_metrics import GenerationMetrics
from services.generation.api.request_span import request_span
from services.generation.api.runner import Completed, Generation, LedgerSide, Run
from services.generation.api.servicer import SERVICE, GenerationServicer
from services.generation.engine.backend import Backend
from services.generation.engine.core import EngineSettings
from services.generation.engine.drafter import Drafter
from services.generation.engine.engine import AsyncEngine
from services.generation.engine.numba_cache import compile_log
from services.generation.engine.prefix_disk import PrefixDisk, PrefixFolder
from services.generation.engine.text.grammar_compiler import Grammars
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.ledger_link import LedgerLink, LedgerUnreachable
from services.generation.preparation import (
    Model,
    engine_of,
    identity_of,
    idle_timing,
    prefix_disk,
    prepared,
    trusted_keys,
)
from services.generation.receipts.erasures import Erasures
from services.generation.receipts.issuer import ReceiptIssuer
from services.generation.receipts.journal import Journal
from services.generation.receipts.outbox import Outbox, key_envelope, register
from services.generation.requests.halts import HaltBoard, ResumeVerifier
from services.generation.requests.prompt import PromptReader
from services.generation.requests.quotas import TenantQuotas
from services.generation.requests.resolution import Identity, Resolver, Rules
from services.generation.requests.served_heads import HeadBoard, HeadState
from services.generation.settings import GenerationSettings
from services.generation.state_folder import StateTaken, state_folder
from services.generation.target.config.config import feature_bytes
from services.generation.target.cpu import load_target
from services.generation.target.program.packed_files import PackedFolder
from services.generation.target.target import LoadTarget, Target
from services.runtime.process import CannotStart
from services.runtime.server import Mount, RunningServer, serve
from services.runtime.tracing import SendSpan, sent_spans

_log = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS = 2.0  # wait for the ledger's halts before the first request; without an answer speculation is off
_ENGINE_LOOK_SECONDS = 1.0
_PROMPT_BYTES = 4 << 20  # of UTF-8
_FLUSH_SECONDS = 5.0  # to send the outbox at the end; the next start sends the rest


async def main(
    settings: GenerationSettings,
    load: LoadTarget | None = None,
    on_loaded: Callable[[], None] = lambda: None,
    beside: Callable[[RunningServer], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """Load, serve until a signal, let running requests end, deliver their receipts. `beside`: as in `serve`."""
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        with compile_log("this start"):
            servicer = await stack.enter_async_context(opened_servicer(settings, registry, load))
        on_loaded()
        async with _ending_with(servicer.engine):
            mounts, interrupt = [mount(servicer)], servicer.interrupt
            await serve("generation", mounts, settings, registry=registry, interrupt=interrupt, beside=beside)


def mount(servicer: GenerationServicer) -> Mount:
    return Mount(SERVICE, lambda server: add_GenerationServiceServicer_to_server(servicer, server))


@asynccontextmanager
async def _ending_with(engine: Backend) -> AsyncIterator[None]:
    """Stop the server as for a signal if its engine stops, then raise CannotStart."""

    async def watch() -> None:
        while engine.alive:  # noqa: ASYNC110  a loop cannot await the end of a thread
            await asyncio.sleep(_ENGINE_LOOK_SECONDS)
        _log.critical("stopping this server: its engine has stopped")
        signal.raise_signal(signal.SIGTERM)

    task = _task(watch())
    try:
        yield
    finally:
        task.cancel()
    if not engine.alive:
        raise CannotStart("the engine stopped by itself; its error is in the log above")


@asynccontextmanager
async def opened_servicer(
    settings: GenerationSettings, registry: CollectorRegistry, load: LoadTarget | None = None
) -> AsyncIterator[GenerationServicer]:
    """A servicer over the model of `settings`, its engine running, its outbox draining. Raises CannotStart.

    After the `async with` every receipt is on disk and, if the ledger answers, in the ledger.
    """
    with (
        _locked(settings.state_dir, settings.replicas, "--state-dir") as folder,
        _prefix_folder(settings) as prefixes,
        sent_spans("generation") as send,
    ):
        key, trusted = _receipts_key(settings), _trusted(settings)
        own = settings.engine == "kolm"
        served = await (_own(settings, load, prefixes) if own else _foreign(settings, folder, key))
        identity = served.identity
        async with _ledger(settings, folder, key, trusted, served, prefixes) as ledger, served.running() as engine:
            issuer, quotas = ReceiptIssuer(identity, key, settings.promise_seconds), TenantQuotas(settings.quotas)
            metrics = GenerationMetrics(registry, identity)
            metrics.watch(engine, ledger.outbox, ledger.halts, prefixes)
            on_ended = None if send is None else partial(_send_span, send, identity.name)
            generation = Generation(
                engine, identity, issuer, ledger, metrics, quotas,
                append_seconds=settings.append_seconds, on_ended=on_ended,
            )  # fmt: skip
            resolver = _resolver(settings, served, ledger, quotas)
            try:
                yield GenerationServicer(identity, served.tokenizer, resolver, generation, engine, ledger)
            finally:
                await generation.close()


def _send_span(send: SendSpan, model: str, run: Run, completed: Sequence[Completed], failed: Exception | None) -> None:
    send(request_span(run, model, completed, failed))


@contextmanager
def _prefix_folder(settings: GenerationSettings) -> Iterator[PrefixFolder | None]:
    """The locked folder of this server's prefixes, or None without one. Raises CannotStart."""
    if settings.prefix_cache_dir is None:
        yield None
        return
    with _locked(settings.prefix_cache_dir, settings.replicas, "--prefix-cache-dir") as folder:
        try:
            prefixes = PrefixFolder(folder, settings.prefix_cache_bytes)
        except OSError as error:
            raise CannotStart(f"--prefix-cache-dir: cannot write in {folder}: {error.strerror}") from None
        yield prefixes
        prefixes.close()


@contextmanager
def _locked(folder: Path, replicas: int, flag: str) -> Iterator[Path]:
    """This server's folder in `folder`, locked. Raises CannotStart, which names the `flag`."""
    with ExitStack() as stack:
        try:
            own = stack.enter_context(state_folder(folder, replicas, flag))
        except StateTaken as error:
            raise CannotStart(str(error)) from None
        except OSError as error:
            raise CannotStart(f"{flag}: cannot write in {folder}: {error.strerror}") from None
        yield own


def _resolver(settings: GenerationSettings, served: _Served, ledger: LedgerSide, quotas: TenantQuotas) -> Resolver:
    identity = served.identity
    prompts = PromptReader(served.tokenizer, identity.context_length, _PROMPT_BYTES)
    on_halt = settings.on_halt or ("refuse" if identity.engine is None else "off")
    rules = Rules(settings.speculation_max_temperature, on_halt == "off", settings.verify == "inline")
    return Resolver(identity, prompts, served.grammars, ledger.halts, ledger.heads, rules, quotas)


def _receipts_key(settings: GenerationSettings) -> Signer:
    try:
        key = open_signer(settings.receipts_key, "receipts", settings.key_passphrase_file, create=True)
        key.publish(settings.public_directory)
        if settings.trusted_keys is not None:
            settings.trusted_keys.mkdir(parents=True, exist_ok=True)
    except (LedgerError, OSError) as error:
        raise CannotStart(f"no key to sign receipts with: {error}") from error
    return key


def _trusted(settings: GenerationSettings) -> TrustedKeys:
    try:
        return trusted_keys(settings)
    except (LedgerError, OSError) as error:
        raise CannotStart(f"--trusted-keys: {error}") from error


@dataclass(frozen=True, slots=True)
class _Served:
    """A prepared model or upstream, not yet running. `entries`: documents that receipts refer to; `on_entry` announces
    more.
    """

    identity: Identity
    tokenizer: TextCodec
    grammars: Grammars
    running: Callable[[], AbstractAsyncContextManager[Backend]]
    heads: HeadState = field(default_factory=HeadState)
    drafters: Collection[Drafter] = ()
    entries: tuple[bytes, ...] = ()
    on_entry: Callable[[Callable[[bytes], None]], None] = lambda callback: None


async def _own(settings: GenerationSettings, load: LoadTarget | None, prefixes: PrefixFolder | None) -> _Served:
    load = load or partial(
        _loading(settings.device), cache_dtype=settings.cache_dtype, arithmetic=settings.arithmetic,
        threads=settings.threads, packed=PackedFolder(settings.packed_bytes),
    )  # fmt: skip
    model, heads = await prepared(settings, load)
    identity = identity_of(model, settings.served_name)
    running = partial(_engine, settings, model, None if prefixes is None else prefix_disk(model, prefixes))
    return _Served(identity, model.tokenizer, model.grammars, running, heads, tuple(model.drafters.values()))


def _loading(device: str | None) -> Callable[..., Target]:
    """The function that loads a model onto a device."""
    if device in (None, "cpu"):
        return load_target
    from services.generation.target.gpu.gpu_target import load_gpu_target

    return partial(load_gpu_target, device=device)


async def _foreign(settings: GenerationSettings, folder: Path, key: Signer) -> _Served:
    from services.generation.remote.dialects import DIALECTS
    from services.generation.remote_preparation import ForeignEngine, PassedOn

    engine = ForeignEngine(settings, folder, key)
    await engine.prepare()
    return _Served(
        engine.identity, engine.tokenizer, PassedOn(DIALECTS[settings.engine]), engine.running, engine.heads,
        entries=(engine.envelope,), on_entry=engine.on_profile,
    )  # fmt: skip


@asynccontextmanager
async def _engine(settings: GenerationSettings, model: Model, disk: PrefixDisk | None) -> AsyncIterator[AsyncEngine]:
    bounds = EngineSettings(
        max_sequences=settings.max_sequences,
        max_waiting=settings.max_waiting,
        prefill_seconds=settings.prefill_seconds,
        prefix_caching=settings.prefix_caching,
        prefix_share=settings.prefix_share,
        feature_bytes=feature_bytes(settings.cache_bytes),
    )
    core = engine_of(model, bounds, disk=disk)
    engine = AsyncEngine(core, idle_work=idle_timing(model, core))
    try:
        yield engine
    finally:
        await engine.stop()
        if disk is not None:
            await asyncio.to_thread(disk.close)


@asynccontextmanager
async def _ledger(
    settings: GenerationSettings,
    folder: Path,
    key: Signer,
    trusted: TrustedKeys,
    served: _Served,
    prefixes: PrefixFolder | None,
) -> AsyncIterator[LedgerSide]:
    """The outbox in `folder`, and halts, heads and erasures, which tasks keep current. On exit a last attempt to empty
    the outbox.
    """
    link = LedgerLink(settings.ledger)
    try:
        journal = Journal(folder / "outbox")
        outbox = Outbox(journal, link.append_all, settings.outbox_limit, settings.outbox_retry_seconds)
        await outbox.recover()
        registered = folder / f"key-{key.key_id.removeprefix('ed25519:')[:16]}.json"
        key_entry = partial(key_envelope, registered, key)
        envelope = await asyncio.to_thread(key_entry)
    except (LedgerError, OSError) as error:
        raise CannotStart(f"cannot keep receipts in {folder}: {error}") from error
    resumes = ResumeVerifier(link.resumes, trusted)
    kept = folder / "halts.json"
    halts = HaltBoard(
        kept, link.halt_state, settings.halt_poll_seconds, resumes.unverified, resumes.scopes,
        settings.halt_lease_seconds,
    )  # fmt: skip
    heads = HeadBoard(served.heads, link.about_heads, trusted, settings.halt_poll_seconds)
    erasures = Erasures(served.drafters, link.erasures, settings.halt_poll_seconds, prefixes)
    outbox.on_confirmed = lambda response: halts.noticed(response.halt_epoch)
    tasks = {
        _task(outbox.drain()),
        _task(outbox.retry_ahead()),
        _task(halts.follow()),
        _task(heads.follow()),
        _task(erasures.follow()),
        _task(register((envelope, *served.entries), key, link, outbox, key_entry)),
    }

    def on_entry(entry: bytes) -> None:
        tasks.add(task := _task(register((entry,), key, link, outbox)))
        task.add_done_callback(tasks.discard)

    served.on_entry(on_entry)
    with suppress(TimeoutError, LedgerUnreachable):
        await asyncio.wait_for(asyncio.gather(halts.refresh(), heads.refresh()), _FIRST_LOOK_SECONDS)
    try:
        yield LedgerSide(outbox, halts, heads, erasures)
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(outbox.attempted(), _FLUSH_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await journal.close()
        await link.close()


def _task(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("restart this server: a background task has ended", exc_info=error)
