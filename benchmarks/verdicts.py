"""`python -m benchmarks.verdicts`: an auditor's verdicts on another engine, honest and with a fault of speculation.

The engine with speculation answers through the generation service's backend; an auditor judges each answer by the
engine without speculation. The fault: a share of draft tokens is replaced between engine and backend, as if the engine
had accepted wrong drafts. The share is of accepted draft tokens alone, or of all of them: then a rejected draft may
also replace the token that the engine chose instead. Verdicts are kept in benchmarks/scratch/verdicts: a stopped run
continues, and a larger run adds to them. The results are made of all kept verdicts, even if no engine is named: a file
for each engine and method, for honest answers and for faults.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, Subject
from benchmarks.specbench.questions import OWN, load_questions
from benchmarks.upstream import llama_server
from ledger.documents.audit import DEVIATION, SAME, UNSTABLE
from ledger.documents.content import Content
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import ENGINE, Receipt, Sampling
from ledger.encoding.document import Seed
from ledger.encoding.text_forms import cid
from services.auditor.audit_error import EngineAway
from services.auditor.foreign_judge import Comparison, ForeignJudge
from services.auditor.plain import PlainUpstream
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, EngineStopped, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.text.tokenizer import TextCodec, Tokenizer
from services.generation.remote.answer import Answer, Drafted, UpstreamError
from services.generation.remote.dialects import DIALECTS, Dialect
from services.generation.remote.remote_engine import RemoteEngine
from services.generation.remote.upstream import Upstream
from services.generation.target.config.config import read_config
from services.generation.target.identity import base_cid
from services.generation.target.model_path import model_path
from tests.unit.ledger.builders import at, content, foreign_receipt

_SCRATCH = Path(__file__).parent / "scratch" / "verdicts"
_SILENCE_SECONDS, _AWAY_SECONDS = 900.0, 5.0  # for engines on a shared machine
_T = TypeVar("_T")
TEMPERATURES, CALLERS = (0.0, 0.7, 1.0), (8, 1)
_MAX_TOKENS = 256  # of an answer: n-grams draft more in long ones
DRAFTED, ACCEPTED = "drafted", "accepted"
"""The draft tokens of which a share is replaced."""


class Judged(msgspec.Struct, frozen=True):
    """An answer and its verdict. `replaced`: draft tokens that were replaced; `apart`: nats between the two tokens at
    the first difference, if both are known; `alone`: whether no other request ran beside it.
    """

    question: int
    tokens: int
    proposed: int
    accepted: int
    cached: int
    alone: bool
    outcome: str  # of the verdict, or the finish reason of an answer without verdict
    replaced: int = 0
    position: int | None = None
    apart: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Answers under equal conditions. `replaced`: share of draft tokens; `of`: of which ones (DRAFTED, ACCEPTED)."""

    temperature: float
    callers: int
    replaced: float = 0.0
    of: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """An answer. `alone`: whether no other request ran beside it; `replaced`: draft tokens that were replaced."""

    request: EngineRequest
    outcome: Outcome
    alone: bool
    replaced: int


@dataclass(frozen=True, slots=True)
class Pair:
    """An engine without and with speculation."""

    engine: str
    method: str
    plain_url: str
    url: str


class FaultySpeculation(Upstream):
    """An upstream that replaces some of its engine's draft tokens, as if the engine had accepted wrong drafts. The
    engine continues from there, as it would after its own mistake.
    """

    def __init__(self, dialect: Dialect, url: str, case: Case, chance: random.Random) -> None:
        super().__init__(dialect, url, None, _SILENCE_SECONDS)
        self._of, self._case, self._chance = dialect, case, chance
        self.replaced: dict[tuple[int, ...], int] = {}  # by prompt

    async def answer(
        self,
        body: Mapping[str, Any],
        numbers: int,
        read: Callable[[Mapping[str, Any]], None],
        *more: Any,
        **options: Any,
    ) -> None:
        """`read` is called with the members of an Answer; the text is left out."""
        prompt, most = list(body["prompt"]), "n_predict" if "n_predict" in body else "max_tokens"
        made: list[int] = []
        proposed = accepted = 0
        while len(made) < body[most]:
            part = _Part(self._of, [*prompt, *made], self._case, self._chance)
            asked = {**body, "prompt": [*prompt, *made], most: body[most] - len(made), "timings_per_token": True}
            try:
                await super().answer(asked, numbers, part.read, *more, **options)
            except _Replaced:
                self.replaced[tuple(prompt)] = self.replaced.get(tuple(prompt), 0) + 1
            made += part.ids
            proposed, accepted = proposed + part.proposed, accepted + part.accepted
            if part.answer.counted not in (None, len(part.answer.ids)):
                raise UpstreamError("left token ids out of its stream")
            read({"ids": part.ids, "finish": part.answer.finish})
            if part.answer.finish is not None:
                break
        else:
            read({"ids": [], "finish": "length"})
        read({"ids": [], "drafted": Drafted(len(made) - accepted, proposed, accepted)})


class _Replaced(Exception):
    """A token was replaced: the rest of the answer is not wanted."""


class _Part:
    """A part of an answer, up to a replaced token, which is the last of `ids`. `accepted`: how many of them were
    drafts; `proposed`: the number of draft tokens of their passes, rejected ones included.
    """

    def __init__(self, dialect: Dialect, context: list[int], case: Case, chance: random.Random) -> None:
        self.answer, self.ids, self.accepted, self.proposed = Answer(), list[int](), 0, 0
        self._dialect, self._context, self._case, self._chance = dialect, context, case, chance
        self._counted = (0, 0)  # proposed and accepted by the engine's count
        self._drafts, self._rejected = 0, 0  # of this pass: accepted tokens that are still to come, and rejected ones
        self._draft: Sequence[int] = ()  # from the next token on

    def read(self, event: Mapping[str, Any]) -> None:
        """Raises _Replaced."""
        before = len(self.answer.ids)
        self._dialect.read(event, self.answer)
        new = self.answer.ids[before:]
        if new:
            self._begin_pass(new, event.get("timings") or {})
        for token in new:
            self.ids.append(self._judged(token))
            if self.ids[-1] != token:
                self.answer = Answer()
                raise _Replaced

    def _begin_pass(self, new: Sequence[int], timings: Mapping[str, Any]) -> None:
        """llama-server sends one token an event, with counts that rise with the first token of a pass; vLLM sends the
        tokens of a pass together, without counts. In both the last token of a pass is the target's own.
        """
        draft = looked_up([*self._context, *self.ids])
        if "draft_n" in timings:
            counted = (timings["draft_n"], timings["draft_n_accepted"])
            if counted == self._counted:
                return
            proposed, accepted = (now - before for now, before in zip(counted, self._counted, strict=True))
            self._counted = counted
        elif timings:  # llama-server has not drafted yet
            return
        else:
            accepted = len(new) - 1
            proposed = max(accepted, len(draft))
        self.proposed += proposed
        self._drafts, self._rejected, self._draft = accepted, proposed - accepted, draft

    def _judged(self, token: int) -> int:
        """The token, or a wrong draft in its place."""
        wrong = next((each for each in self._draft[:1] if each != token), None)
        self._draft = self._draft[1:]
        if self._drafts > 0:
            self._drafts, self.accepted, judged = self._drafts - 1, self.accepted + 1, 1
        else:
            judged, self._rejected = self._rejected if self._case.of == DRAFTED else 0, 0
        if self._chance.random() >= 1.0 - (1.0 - self._case.replaced) ** judged:
            return token
        return self._chance.choice([each for each in self._context if each != token]) if wrong is None else wrong


def looked_up(context: Sequence[int]) -> Sequence[int]:
    """The draft tokens of vLLM's n-grams with `VLLM_NGRAMS`: those after the earliest occurrence of the longest n-gram
    at the end. They also serve for other methods, whose draft tokens are unknown, with vLLM even their number.
    """
    for size in (4, 3, 2):
        last = context[-size:]
        for place in range(len(context) - size):
            if context[place : place + size] == last:
                return context[place + size : place + size + 4]
    return ()


class _Members:
    """The dialect of FaultySpeculation's events."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def read(self, event: Mapping[str, Any], answer: Answer) -> None:
        answer.ids += event["ids"]
        answer.finish = event.get("finish", answer.finish)
        answer.drafted = event.get("drafted")


class _NoCodec:
    """A codec for answers whose text is not read."""

    stream = staticmethod(NoText)


class Auditor:
    """Judges answers by the plain engine."""

    def __init__(self, pair: Pair, profile: EngineProfile) -> None:
        self._plain, self._profile, self._cid = (
            PlainUpstream(pair.engine, pair.plain_url),
            profile,
            cid(profile.to_bytes()),
        )
        self._judge = ForeignJudge({self._cid: profile}.get, self, None)
        self._last = Comparison()
        self.engine, self.about = self._plain.engine, self._plain.about

    def held_against(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Comparison:
        self._last = self._plain.held_against(receipt, content, profile)
        return self._last

    def judged(self, served: Served) -> Judged:
        outcome, counts = served.outcome, served.outcome.metrics
        made = Judged(
            int(served.request.request_id), len(outcome.token_ids), counts.num_draft_tokens,
            counts.num_accepted_tokens, counts.cached_prompt_tokens, served.alone, outcome.finish_reason,
            served.replaced, reason=outcome.error,
        )  # fmt: skip
        if outcome.finish_reason not in ("stop", "length"):
            return made
        self._last = Comparison()
        (finding,) = self._judge.judge(*self._receipted(served.request, outcome))
        at, ours, theirs = self._last.position, self._last.served_logprob, self._last.plain_logprob
        apart = None if ours is None or theirs is None else round(abs(ours - theirs), 4)
        reason = None if finding.outcome == SAME else finding.reason
        return msgspec.structs.replace(made, outcome=finding.outcome, position=at, apart=apart, reason=reason)

    def _receipted(self, asked: EngineRequest, outcome: Outcome) -> tuple[Receipt, Content]:
        params, known = asked.sampling, foreign_receipt(profile_cid=self._cid, engine=self._profile.name)
        output = msgspec.structs.replace(
            known.output, tokens=len(outcome.token_ids), finish_reason=outcome.finish_reason,
            stop_reason=outcome.stop_reason, stream_digest=outcome.stream_digest,
        )  # fmt: skip
        sampling = Sampling(
            params.temperature, seed=Seed(params.seed), max_tokens=params.max_tokens, ignore_eos=params.ignore_eos
        )
        receipt = msgspec.structs.replace(known, base_cid=self._profile.base_cid, sampling=sampling, output=output)
        return receipt, msgspec.structs.replace(
            content(), prompt_token_ids=asked.prompt, output_token_ids=outcome.token_ids
        )


async def _until_there(ask: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
    """The result of `ask`, which is repeated while the engine is away."""
    while True:
        try:
            return await ask(*arguments)
        except (EngineAway, EngineStopped) as error:
            print(f"the engine is away: {error}", flush=True)
            await asyncio.sleep(_AWAY_SECONDS)


class Bench:
    """The generation service's backend and auditors on a pair of running engines."""

    def __init__(self, pair: Pair, weights: Path, name: str | None = None) -> None:
        """`name`: the engine's name in the results. Raises KolmError for engines that cannot be asked."""
        self._pair, self._dialect, self._tokenizer = pair, DIALECTS[pair.engine], Tokenizer(weights)
        self._ends = frozenset(read_config(weights).eos_token_ids)
        found = asyncio.run(_until_there(asyncio.to_thread, PlainUpstream(pair.engine, pair.plain_url).about))
        self.profile = EngineProfile(
            pair.engine, found.version, found.model, base_cid(weights), True, at(0),
            flags={name.lower(): flag for name, flag in found.flags.items()}, batch_invariant=found.batch_invariant,
            speculation=pair.method,
        )  # fmt: skip
        self._name = name or self.profile.name.replace("/", " ")

    def path(self, case: Case) -> Path:
        kind = f"{case.replaced:g} of {case.of}" if case.replaced else "honest"
        return _SCRATCH / f"{self._name}~{self._pair.method}~{kind}~{case.temperature:g}~{case.callers}.jsonl"

    async def run(self, case: Case, prompts: Sequence[tuple[int, ...]], path: Path) -> None:
        """Serve and judge the answers that are not kept yet, by as many auditors as callers."""
        done = {each.question for each in kept(path)}
        todo = iter([number for number in range(len(prompts)) if number not in done])
        answers: asyncio.Queue[Served | None] = asyncio.Queue(case.callers)
        faulty = FaultySpeculation(self._dialect, self._pair.url, case, random.Random(len(done)))
        fast = faulty if case.replaced else Upstream(self._dialect, self._pair.url, None, _SILENCE_SECONDS)
        engine = self._backend(fast, replaced=bool(case.replaced))

        async def call() -> None:
            for number in todo:
                sampling = SamplingParams(case.temperature, seed=number, max_tokens=_MAX_TOKENS)
                asked = EngineRequest(str(number), prompts[number], sampling, method=ENGINE)
                outcome, ticket = await _until_there(engine.complete, asked)
                await answers.put(Served(asked, outcome, ticket.alone, faulty.replaced.pop(asked.prompt, 0)))

        async def audit() -> None:
            auditor = Auditor(self._pair, self.profile)
            while (served := await answers.get()) is not None:
                found = await _until_there(asyncio.to_thread, auditor.judged, served)
                print(self._pair.engine, self._pair.method, case, found, flush=True)
                with path.open("ab") as file:
                    file.write(msgspec.json.encode(found) + b"\n")

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call()) for _ in range(case.callers)]
            for _ in calls:
                group.create_task(audit())
            await asyncio.gather(*calls)
            for _ in calls:
                await answers.put(None)
        await fast.close()

    def _backend(self, fast: Upstream, *, replaced: bool) -> RemoteEngine:
        async def confirmed(method: str) -> str:
            return ""

        return RemoteEngine(
            cast(Dialect, _Members(self._dialect)) if replaced else self._dialect, {ENGINE: fast}, self.profile.model,
            cast(TextCodec, _NoCodec()) if replaced else self._tokenizer, adapters={}, most=max(CALLERS),
            vocabulary=len(self._tokenizer.fast.get_vocab()), ends=self._ends, reuse=False, confirmed=confirmed,
        )  # fmt: skip


def kept(path: Path) -> list[Judged]:
    """The verdicts of a case, in the order of questions, without a last line that a stopped run left incomplete."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = {each.question: each for each in (msgspec.json.decode(line, type=Judged) for line in lines)}
    return [found[question] for question in sorted(found)]


def row(case: Case, found: Sequence[Judged]) -> dict[str, Any]:
    """Counts of verdicts, and the tokens that an auditor reads up to each DEVIATION."""
    counts = {name: sum(each.outcome == name for each in found) for name in (SAME, UNSTABLE, DEVIATION)}
    apart = [each.apart for each in found if each.outcome == UNSTABLE and each.apart is not None]
    return {
        "temperature": case.temperature, "callers": case.callers, "share replaced": case.replaced,
        "replaced of": case.of, "answers": len(found), "tokens": sum(each.tokens for each in found), **counts,
        "other": len(found) - sum(counts.values()),
        "tokens drafted": sum(each.proposed for each in found), "accepted": sum(each.accepted for each in found),
        "faulty": sum(each.replaced > 0 for each in found),
        "faulty found": sum(each.replaced > 0 and each.outcome == DEVIATION for each in found),
        "beside others": sum(not each.alone for each in found),
        "most nats apart": max(apart, default=None), "tokens until DEVIATION": read(found),
    }  # fmt: skip


def read(found: Sequence[Judged]) -> list[int]:
    """The numbers of tokens that an auditor reads up to each next DEVIATION; the last number is of those after all."""
    runs = [0]
    for each in found:
        if each.outcome == DEVIATION:
            runs[-1] += (each.position or 0) + 1
            runs.append(0)
        else:
            runs[-1] += each.tokens
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    tokenizer = Tokenizer(model_path(given.weights))
    questions = load_questions(OWN)
    turns = [question.turns[0] for kind in zip_longest(*questions.values()) for question in kind if question]
    prompts = [tuple(tokenizer.encode_chat([{"role": "user", "content": turn}])) for turn in turns]
    _SCRATCH.mkdir(parents=True, exist_ok=True)
    with ExitStack() as servers:
        pairs = [Pair(*each) for each in given.upstream]
        if given.llama_server is not None:
            file, slots = model_path(given.weights), max(CALLERS)
            plain, fast = (
                servers.enter_context(llama_server(given.llama_server or None, file, *flags, slots=slots))
                for flags in ((), ("--spec-type", given.spec_type))
            )
            pairs.append(Pair("llama-server", given.spec_type, plain.url, fast.url))
        for pair in pairs:
            bench = Bench(pair, model_path(given.weights), given.name)
            cases = [Case(temperature, callers) for callers in CALLERS for temperature in given.temperatures]
            cases += [Case(0.0, callers, given.share, of) for of in given.faults for callers in CALLERS]
            for case in cases:
                path = bench.path(case)
                path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in kept(path)))
                count = given.answers[CALLERS.index(case.callers)]
                asyncio.run(bench.run(case, prompts[:count], path))
    subject = Subject.of(model_path(given.weights), questions=OWN.name)
    for each in concluded():
        work = "-faults" if each["cases"][0]["share replaced"] else ""
        name = re.sub(r"[^0-9a-z]+", "-", f"{each['engine']}-{each['method']}{work}".lower())
        Measurement.now("verdicts", [each], subject, case=name).write(given.out)


def concluded() -> Iterator[dict[str, Any]]:
    """The kept cases of each engine and method, those with faults apart from honest ones."""
    cases: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for path in sorted(_SCRATCH.glob("*.jsonl")):
        engine, method, kind, temperature, callers = path.stem.split("~")
        share, _, of = kind.partition(" of ") if kind != "honest" else ("0", "", "")
        if found := kept(path):
            made = row(Case(float(temperature), int(callers), float(share), of), found)
            cases.setdefault((engine, method, bool(of)), []).append(made)
    for (engine, method, _), rows in cases.items():
        yield {"engine": engine, "method": method, "cases": rows}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument(
        "--llama-server", nargs="?", const="", metavar="FILE", help="start this llama-server, by default xllamacpp's"
    )
    parser.add_argument("--spec-type", default="ngram-map-k", help="speculation of that server (ngram-map-k)")
    parser.add_argument(
        "--upstream", nargs=4, action="append", default=[], metavar=("ENGINE", "METHOD", "PLAIN_URL", "URL"),
        help="a running vllm or llama-server; may be repeated",
    )  # fmt: skip
    parser.add_argument("--name", help="name of the engine in the results (its name and version)")
    parser.add_argument(
        "--weights", type=Path, default=Path("smollm2"), help="the model that the engines serve (smollm2)"
    )
    parser.add_argument(
        "--answers", type=int, nargs=2, default=[64, 24], metavar=("TOGETHER", "ALONE"),
        help="number of answers of a case with eight callers, and with one, at most 120 (64 24)",
    )  # fmt: skip
    parser.add_argument(
        "--temperatures",
        type=float,
        nargs="*",
        default=TEMPERATURES,
        metavar="T",
        help="temperatures of honest answers (0 0.7 1)",
    )
    parser.add_argument("--share", type=float, default=0.02, help="share of draft tokens to replace (0.02)")
    parser.add_argument(
        "--faults",
        nargs="*",
        choices=(DRAFTED, ACCEPTED),
        default=(DRAFTED, ACCEPTED),
        help="replace that share of all drafted tokens, of accepted ones, or of each (both)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON (benchmarks/results)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
