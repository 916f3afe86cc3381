"""`python -m benchmarks --only specbench`: run contenders in turns, in cases of temperature, batch and context."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.engines import Contender, KolmEngine
from benchmarks.specbench.conversation import ConversationRun, run_all, summarise
from benchmarks.specbench.questions import OWN, Question, lengthened, load_questions, own_pages
from benchmarks.storages import in_storage
from services.generation.drafting.methods import METHODS
from services.generation.engine.core import EngineSettings
from services.generation.target.model_path import model_path

_DEMO = Path(__file__).parents[2] / "demo" / "smollm2"
HEAD, STORE = _DEMO / "head", _DEMO / "store"
_ALL = 10**9

_FEW = 3


@dataclass(frozen=True, slots=True)
class Case:
    """`questions` of each kind in `batch` concurrent conversations, with prompts of `context` tokens, or as they are
    written if it is None.

    With a batch of 1, each kind has its figures. In larger batches all kinds share one queue: when an answer ends, the
    next one begins, as on a server, so that the figure is throughput and not the time of a batch's last answer.
    """

    temperature: float
    batch: int
    context: int | None = None
    questions: int = _ALL

    @classmethod
    def parse(cls, text: str) -> Case:
        """A case, given as "TEMPERATURE:BATCH" or "TEMPERATURE:BATCH:CONTEXT". Raises ValueError, TypeError."""
        temperature, batch, *context = text.split(":")
        return cls(float(temperature), int(batch), int(*context) if context else None, 4 if context else _ALL)


FULL = (
    *(Case(temperature, batch) for temperature in (0.0, 1.0) for batch in (1, 4, 16)),
    *(Case(0.0, 1, context, 4) for context in (512, 2048, 6144)),
)
QUICK = (Case(0.0, 1, None, _FEW), Case(1.0, 1, None, _FEW), Case(0.0, 16))


def measure(
    model: Path | None = None,
    questions: Path = OWN,
    *,
    head: Path = HEAD,
    max_tokens: int,
    quick: bool = False,
    storage: str | None = None,
    arithmetic: str | None = None,
    cases: Sequence[Case] = (),
    methods: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measure every case. `model` is a GGUF file, by default SmolLM2's, which is rewritten in `storage` if it is given.
    A quick run asks three questions of each kind in the named `cases`. `methods` are the contenders; None is `off`,
    every loaded method, and `auto`.
    """
    path = model or model_path("smollm2")
    if model is None and storage is not None:
        path = in_storage(path, storage)
    known = load_questions(questions)
    engine = KolmEngine(path, *((head, arithmetic, STORE) if model is None else (None, arithmetic)))
    contenders = [each for each in _kolm(engine) if methods is None or each.name.removeprefix("kolm ") in methods]
    _warm_up(contenders, engine)
    rows = []
    named = [replace(case, questions=_FEW) for case in cases] if quick else cases
    for case in named or (QUICK if quick else FULL):
        runs = _run_case(case, contenders, engine, known, max_tokens)
        rows.append(asdict(case) | {"questions": _count(case, known), "contenders": summarise(runs, plain="kolm off")})
    return {"model": path.name, "cases": rows}


def _warm_up(contenders: Sequence[Contender], engine: KolmEngine) -> None:
    """Let each contender answer once at each temperature, so that no compilation is timed."""
    prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Count to ten, and then count to ten again."}])
    for contender in contenders:
        for temperature in (0.0, 1.0):
            contender.run([prompt], temperature, 32)


def _kolm(engine: KolmEngine) -> list[Contender]:
    """The contenders: off, each loaded method, and auto, which names the first method and then the others."""
    names = [spec.name for spec in METHODS if spec.name in engine.drafters]
    auto = engine.contender(names[0], name="auto", next_methods=tuple(names[1:]))
    return [engine.contender("off"), *(engine.contender(name) for name in names), auto]


def _run_case(
    case: Case,
    contenders: Sequence[Contender],
    engine: KolmEngine,
    known: Mapping[str, list[Question]],
    max_tokens: int,
) -> dict[str, list[Mapping[str, ConversationRun]]]:
    """The runs of each contender, by kind, group by group."""
    engine.settings = EngineSettings(max_sequences=case.batch, max_waiting=_ALL)
    asked = {kind: questions[: case.questions] for kind, questions in known.items()}
    if case.context is not None:
        pages, tokenizer, length = own_pages(), engine.tokenizer, case.context
        asked = {
            kind: [lengthened(each, length, pages, tokenizer.encode) for each in questions]
            for kind, questions in asked.items()
        }
    groups = _groups(asked, case.batch)
    rng = random.Random(0)
    runs: dict[str, list[Mapping[str, ConversationRun]]] = {kind: [] for kind, _ in groups}
    for kind, group in track(groups, f"T = {case.temperature:g}, batch {case.batch}, context {case.context}"):
        runs[kind].append(run_all(contenders, group, engine.tokenizer, case.temperature, max_tokens, rng))
    return runs


def _groups(asked: Mapping[str, Sequence[Question]], batch: int) -> list[tuple[str, Sequence[Question]]]:
    """Groups of questions by kind: each question alone, the kinds in turns; in larger batches all in one group."""
    turns = [question for some in zip_longest(*asked.values()) for question in some if question is not None]
    return [(each.kind, [each]) for each in turns] if batch == 1 else [("all kinds", turns)]


def _count(case: Case, known: Mapping[str, Sequence[Question]]) -> int:
    return sum(min(case.questions, len(questions)) for questions in known.values())
