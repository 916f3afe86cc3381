"""Preparation of another engine from the settings: its signed profile, its tokenizer, its upstreams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ledger.audit.draft_head_evidence import DraftHeadEvidence, check_files, verify_draft_head
from ledger.documents.dates import MOST_SKEW_SECONDS, ahead_of
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import ENGINE
from ledger.documents.signed_document import sign_document
from ledger.durable_file import write_durably
from ledger.encoding.text_forms import cid, cid_of_json, moved, timestamp
from ledger.errors import LedgerError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope, verified_signers
from ledger.keys.signer import Signer
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import MethodSpec
from services.generation.engine.request import EngineRequest, Grammar, SamplingParams, StructuredOutputs
from services.generation.engine.text.grammar import check_size, checked_json
from services.generation.engine.text.grammar_compiler import GrammarBudget
from services.generation.engine.text.tenant_threads import REMOTE_THREADS, TenantThreads
from services.generation.engine.text.tokenizer import TextCodec, Tokenizer
from services.generation.preparation import trusted_keys
from services.generation.remote.answer import UpstreamError
from services.generation.remote.dialects import DIALECTS, About, Dialect, checked
from services.generation.remote.remote_engine import RemoteEngine
from services.generation.remote.tokenizer import RemoteTokenizer
from services.generation.remote.upstream import Upstream, UpstreamDown
from services.generation.requests.policy import AWAY
from services.generation.requests.resolution import Identity
from services.generation.requests.served_heads import HeadState, ServedHead
from services.generation.settings import GenerationSettings
from services.generation.target.adapters import AdapterIdentity, adapter_cid
from services.generation.target.config.config import read_config
from services.generation.target.errors import TargetError, about
from services.generation.target.identity import base_cid, one_version, tokenizer_cid
from services.runtime.process import CannotStart
from services.runtime.setting_kind import key_in

_log = logging.getLogger(__name__)

_START_SECONDS = 900.0  # time for a large model to load
_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 10.0  # poll interval of the upstreams' descriptions
_MOST_RECENT = 16  # profiles whose entries are remembered: several versions behind one address answer in turns
_SPARE = 8  # tokens of a context that requests leave free: engines end or refuse answers a few tokens before its end
_ANY_TOKEN = 2**31  # the vocabulary's size if the engine does not report it

SPECULATION = MethodSpec(
    ENGINE, "the speculation of the engine behind this server, which it was started with", lambda parts: {},
    flag="--url, an upstream that speculates",
)  # fmt: skip


def _no_kind(*_: object) -> Any:
    raise NotImplementedError("the other engine reads its heads itself")


class PassedOn:
    """Passes constraints on to the other engine, which compiles them."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._threads = dialect, TenantThreads(REMOTE_THREADS)

    async def compiled(
        self, source: StructuredOutputs, tenant: str = "", budget: GrammarBudget | None = None, sequences: int = 0
    ) -> Grammar:
        """Raises InvalidRequest for a constraint that is too large, or that the engine has no form for. Costs no CPU
        seconds here.
        """
        check_size(source)
        asked = EngineRequest("", (), SamplingParams(structured_outputs=source))
        checked(self._dialect, asked)
        if source.kind == "json":  # sent as it is written
            await self._threads.run(partial(checked_json, source), tenant)
        self._dialect.body(asked, "", None, stream=False)
        return Grammar(source, 0, 0, compile=None)  # type: ignore[arg-type]  # only our own sequences read that


class ForeignEngine:
    """The upstreams of another engine, and the identity for requests and receipts, which follows their updates."""

    def __init__(self, settings: GenerationSettings, folder: Path, key: Signer) -> None:
        self._settings, self._folder, self._key = settings, folder, key
        self._dialect = DIALECTS[settings.engine]
        self._api_key = None if settings.engine_key_file is None else key_in(settings.engine_key_file)
        urls = {"off": settings.plain_url or "", ENGINE: settings.url}
        self._upstreams = {
            method: Upstream(self._dialect, url, self._api_key, settings.engine_silence_seconds)
            for method, url in urls.items()
            if url is not None
        }
        self._abouts: dict[str, About] = {}
        self._away: dict[str, object] = {}  # a mark of each method whose upstream may have been replaced
        self._speculates = SPECULATION
        self._reached = True  # whether the upstream that speculates answered when it was last asked
        self._looks: dict[str, asyncio.Task[None]] = {}  # running, by method
        self._recent: list[bytes] = []  # entries of profiles, the latest first
        self._ends = frozenset[int]()
        self._on_profile: Callable[[bytes], None] = lambda entry: None
        self.heads = HeadState()
        self.identity: Identity
        self.tokenizer: TextCodec
        self.envelope: bytes
        self._profile: EngineProfile

    async def prepare(self) -> None:
        """Wait until the upstreams answer. Raises CannotStart, with all connections closed."""
        try:
            await self._prepare()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        for look in self._looks.values():
            look.cancel()
        for upstream in self._upstreams.values():
            await upstream.close()
        if isinstance(tokenizer := getattr(self, "tokenizer", None), RemoteTokenizer):
            tokenizer.close()

    async def _prepare(self) -> None:
        for method in self._upstreams:
            self._abouts[method] = await self._first_description(method)
        plain, fast = self._abouts["off"], self._abouts.get(ENGINE)
        if plain.speculates:
            raise CannotStart("--plain-url: that engine speculates; expected the same engine with speculation off")
        if fast is not None and not _alike(plain, fast):
            raise CannotStart(
                f"--url is {_named(fast)}, --plain-url {_named(plain)}; expected one version of one model"
            )
        if fast is not None and fast.speculates is False:
            _log.warning("--url: that engine does not speculate either; drop the flag, or start it with speculation")
        if unknown := next((name for name in self._settings.adapters if name not in plain.adapters), None):
            known = ", ".join(sorted(plain.adapters)) or "none"
            raise CannotStart(f"--adapter: the engine has no LoRA adapter {unknown}; it has {known}")
        size = _ANY_TOKEN if self._settings.weights is not None else await self._vocabulary()
        try:
            weights = self._settings.weights
            with nullcontext() if weights is None else one_version(weights):
                self._identify(plain, size)
        except TargetError as error:
            raise CannotStart(f"cannot serve {about(self._settings.weights or Path(), error)}") from error
        if self._settings.head:
            await asyncio.to_thread(self._check_head, Path(self._settings.head[0]))
        try:
            self._profiled(self._abouts)
        except (OSError, LedgerError) as error:
            raise CannotStart(f"--state-dir: cannot keep the engine's profile in {self._folder}: {error}") from error

    def _check_head(self, folder: Path) -> None:
        """Check that the head of --head, with which the engine was started, is published. Raises CannotStart."""
        base = self.identity.base_cid if self._settings.weights is not None else None
        try:
            published = verify_draft_head(DraftHeadEvidence.read(folder), trusted_keys(self._settings), base)
            check_files(published.manifest, folder)
        except (LedgerError, OSError) as error:
            raise CannotStart(f"--head: {folder} is not a head that receipts may name: {error}") from error
        head = ServedHead(published.cid, folder, published.publication.name, published.index, ENGINE)
        self.heads = HeadState((head,))
        self._speculates = replace(SPECULATION, heads=HeadKind(_no_kind, "", _no_kind))

    async def _first_description(self, method: str) -> About:
        upstream, until, last_logged = self._upstreams[method], time.monotonic() + _START_SECONDS, ""
        while True:
            try:
                return await upstream.about()
            except UpstreamError as error:
                raise CannotStart(f"--engine {self._dialect.name}: {error}") from error
            except UpstreamDown as error:
                if time.monotonic() > until:
                    raise CannotStart(f"--engine {self._dialect.name}: {error}") from error
                if str(error) != last_logged:
                    _log.info("waiting for the engine: %s", last_logged := str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _vocabulary(self) -> int:
        """The vocabulary's size according to the engine. Raises CannotStart."""
        try:
            return await self._dialect.vocabulary(self._upstreams["off"].ask) or _ANY_TOKEN
        except (UpstreamDown, UpstreamError) as error:
            raise CannotStart(f"--engine {self._dialect.name}: {error}") from error

    def _identify(self, plain: About, known: int) -> None:
        """`known` is the vocabulary's size without weights. Raises TargetError for weights that cannot be read."""
        weights, named = self._settings.weights, {"model": plain.model}
        if weights is None:
            remote = RemoteTokenizer(self._dialect.name, self._settings.plain_url or "", plain.model, self._api_key)
            self.tokenizer, context = remote, remote.chat_template_digest
        else:
            self.tokenizer = own = Tokenizer(weights)
            context, known = own.chat_template_digest, max(own.fast.get_vocab().values()) + 1
            with suppress(TargetError):  # an architecture that only the other engine supports
                self._ends = frozenset(read_config(weights).eos_token_ids)
        adapters = [AdapterIdentity(name, adapter_cid(path)) for name, path in self._settings.adapters.items()]
        self.identity = Identity(
            name=self._settings.model_name or plain.model,
            architecture=self._dialect.name,
            base_cid=base_cid(weights) if weights else cid_of_json({"type": "kolm.base.named.v1", **named}),
            tokenizer_cid=(
                tokenizer_cid(weights) if weights else cid_of_json({"type": "kolm.tokenizer.named.v1", **named})
            ),
            profile_cid="",
            profile={},
            probe_passed=False,
            vocab_size=plain.vocab_size or known,
            context_length=max(1, min(plain.context_length - _SPARE, self._settings.context_length or _ANY_TOKEN)),
            drafters=(),
            adapters=tuple(adapters),
            chat_template=context,
            methods_known=(SPECULATION,),
            not_drafted=self._dialect.not_drafted,
        )

    def _profiled(self, abouts: dict[str, About]) -> None:
        """Update the identity from the upstreams' descriptions; a profile that is unchanged, or that comes back, keeps
        its entry. Raises OSError, LedgerError, and nothing changes, if a new entry cannot be signed or kept.
        """
        document, kept = self._document(abouts["off"], abouts.get(ENGINE)), self._folder / "engine-profile.json"
        stored = kept.read_bytes() if kept.exists() else b""
        known = (each for each in (stored, *self._recent) if _is_entry_of(each, document, self._key.public))
        if (envelope := next(known, None)) is None:
            envelope = sign_document(document, self._key).to_bytes()
        if envelope != stored:
            write_durably(kept, envelope)
        self._recent = [envelope, *(each for each in self._recent if each != envelope)][:_MOST_RECENT]
        self._abouts, self.envelope, self._profile = abouts, envelope, document
        payload = Envelope.from_bytes(envelope).payload
        identity = self.identity
        identity.profile_cid, identity.profile = cid(payload), document.to_document()
        identity.engine = document.name
        self._offer()
        _log.info("updating the engine's identity: %s, profile %s", identity.engine, identity.profile_cid)

    def _offer(self) -> None:
        """Offer speculation while the upstream for it answers, and is the engine of the profile."""
        plain, fast = self._abouts["off"], self._abouts.get(ENGINE)
        offered = self._reached and fast is not None and _alike(plain, fast)
        self.identity.drafters = (ENGINE,) if offered else ()
        missing = replace(SPECULATION, missing=None if self._reached else AWAY)
        self.identity.methods_known = (self._speculates if offered else missing,)

    def _document(self, plain: About, fast: About | None) -> EngineProfile:
        given = dict(each.partition("=")[::2] for each in self._settings.engine_flag)
        speculation = given.pop("speculation", None) if fast is not None else None
        invariant = given.pop("batch_invariant", None)
        return EngineProfile(
            engine=self._dialect.name,
            version=plain.version,
            model=plain.model,
            base_cid=self.identity.base_cid,
            weights_checked=self._settings.weights is not None,
            device=given.pop("device", None) or plain.device,
            parallelism=given.pop("parallelism", None) or plain.parallelism,
            batch_invariant=plain.batch_invariant if invariant is None else invariant == "true",
            flags={name.lower(): value for name, value in {**given, **plain.flags}.items() if value},
            speculation=speculation or (fast.speculation or "as it was started" if fast is not None else None),
            issued_at=timestamp(datetime.now(UTC)),
        )

    def on_profile(self, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with the entry of each new profile from now on."""
        self._on_profile = callback

    def away(self, method: str) -> None:
        """Note that the upstream of `method` was unreachable or broke off."""
        self._away[method] = object()

    async def confirmed(self, method: str) -> str:
        """The profile of the upstream of a method. Raises UpstreamDown, UpstreamError."""
        begun = method in self._looks
        if method in self._away:
            await self._shared_look(method)
        if begun and method in self._away:  # it has broken off since that look began
            await self._shared_look(method)
        return self.identity.profile_cid

    async def follow(self) -> None:
        """Check periodically whether the upstreams have changed, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for method in self._upstreams:
                try:
                    await self._shared_look(method)
                except (UpstreamDown, UpstreamError) as error:
                    if method not in self._away:
                        _log.warning("checking the engine failed: %s", error)
                    self.away(method)

    async def _shared_look(self, method: str) -> None:
        """Check one upstream, once for all who wait for it. Raises UpstreamDown, UpstreamError."""
        if (look := self._looks.get(method)) is None:
            look = self._looks[method] = asyncio.create_task(self._look(method))
            look.add_done_callback(lambda done: self._looked(method, done))
        await asyncio.shield(look)

    def _looked(self, method: str, look: asyncio.Task[None]) -> None:
        del self._looks[method]
        if not look.cancelled():
            look.exception()  # marks it as retrieved: the requests may have ended

    async def _look(self, method: str) -> None:
        """Check one upstream. Raises UpstreamDown, UpstreamError."""
        mark = self._away.get(method)
        try:
            found, known = await self._described(method), self._abouts[method]
        except UpstreamDown:
            self._reach(method, reached=False)
            raise
        self._reach(method, reached=True)
        if found != known:
            _log.warning("updating the profile: the engine was %s and is %s", _named(known), _named(found))
            if method not in self._away:  # from now on no request may name the old profile
                self._away[method] = mark = object()
            news = {method: found}
            for other in self._upstreams.keys() - {method}:  # updated at about the same time
                try:
                    news[other] = await self._described(other)
                except (UpstreamDown, UpstreamError):
                    self.away(other)
            try:
                self._profiled(self._abouts | news)
            except (OSError, LedgerError) as error:
                _log.error("keeping the engine's new profile failed: %s", error)
                raise UpstreamError("was updated, and its profile cannot be kept; see this server's log") from error
            self._on_profile(self.envelope)
        if self._away.get(method) is mark:  # it has not broken off since
            self._away.pop(method, None)

    def _reach(self, method: str, *, reached: bool) -> None:
        if method == ENGINE and reached != self._reached:
            _log.warning(
                "the engine that speculates %s", "is back" if reached else "is away; its requests go to the other"
            )
            self._reached = reached
            self._offer()

    async def _described(self, method: str) -> About:
        found = await self._upstreams[method].about()
        if method == "off" and found.speculates:
            raise UpstreamError("--plain-url speculates now; answers cannot be compared with it")
        if found.model != self._abouts[method].model:
            raise UpstreamError(f"serves {found.model} now; restart this server to serve that")
        known = self._abouts[method]
        if known.speculation is None and replace(found, speculation=None) == known:
            return known  # llama-server names its speculation only after a request, and it was the same before
        return replace(found, speculation=found.speculation or known.speculation)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RemoteEngine]:
        """The running backend. On exit all upstreams are closed."""
        ids = {each.cid: each.name for each in self.identity.adapters}
        engine = RemoteEngine(
            self._dialect, self._upstreams, self._abouts["off"].model, self.tokenizer, adapters=ids,
            most=self._settings.max_sequences + self._settings.max_waiting, confirmed=self.confirmed,
            vocabulary=self.identity.vocab_size, ends=self._ends, reuse=self._profile.reuses_prefixes,
        )  # fmt: skip
        engine.broke_off = self.away
        watch = asyncio.create_task(self.follow())
        try:
            yield engine
        finally:
            watch.cancel()
            await engine.stop()
            await self.close()


def _alike(plain: About, fast: About) -> bool:
    """Whether answers of the two upstreams are comparable."""
    return (plain.version, plain.model, plain.flags) == (fast.version, fast.model, fast.flags)


def _named(found: About) -> str:
    return f"{found.version} with {found.model} {dict(found.flags)}"


def _is_entry_of(data: bytes, document: EngineProfile, key: PublicKey) -> bool:
    """Whether `key` has signed these bytes, and their profile is the same apart from the time, and not dated ahead."""
    try:
        envelope = Envelope.from_bytes(data)
        known = EngineProfile.from_bytes(envelope.payload)
    except LedgerError:
        return False
    same = msgspec.structs.replace(known, issued_at=document.issued_at) == document
    same = same and ahead_of(known, moved(document.issued_at, MOST_SKEW_SECONDS)) is None
    return same and bool(verified_signers(envelope, [key]))
