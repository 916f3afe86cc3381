"""`python -m benchmarks.identity`: the share of requests with equal outputs of speculation and of plain decoding.

Between two servers with OpenAI's chat completions, one server with a request member that turns speculation off, or two
methods of a kolm server:

    python -m benchmarks.identity --base-url http://127.0.0.1:8001/v1 --plain-url http://127.0.0.1:8000/v1 --model NAME
    python -m benchmarks.identity --base-url http://127.0.0.1:8000/v1 --model NAME --plain-extra '{"draft": false}'
    python -m benchmarks.identity --kolm 127.0.0.1:50051 --method lookahead

`python -m benchmarks.identity table` measures several engines side by side (benchmarks/exactness.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Protocol

from rich.progress import track

from benchmarks.machine import RESULTS
from benchmarks.measurement import Machine
from benchmarks.specbench.questions import OWN, Question, QuestionsInvalid, first, load_questions
from services.client.errors import KolmError
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig
from services.client.generation.runtime import Runtime

_NORMAL_95 = 1.96


class ServerFailed(Exception):
    """A server gave no answer; the message has its name and the reason."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. Seed and temperature are sent as they are."""

    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The text, and the token ids if the server gives them; different tokens may have equal texts."""

    text: str
    token_ids: tuple[int, ...] | None = None


class Server(Protocol):
    name: str

    def answer(self, asked: Asked) -> Answer:
        """Raises ServerFailed."""
        ...


class OpenAIServer:
    """POST {base_url}/chat/completions, without streaming. `extra` are members added to every request's body."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str = "",
        extra: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.name = base_url
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._extra = dict(extra or {})
        self._timeout = timeout

    def answer(self, asked: Asked) -> Answer:
        body = {
            "model": self._model,
            "messages": [{"role": role, "content": content} for role, content in asked.messages],
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "seed": asked.seed,
        }
        request = urllib.request.Request(self._url, json.dumps(body | self._extra).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return read_completion(response.read())
        except urllib.error.HTTPError as error:
            refusal = error.read(300).decode("utf-8", "replace")
            raise ServerFailed(f"{self._url}: HTTP {error.code}: {refusal}") from None
        except (OSError, ValueError) as error:
            raise ServerFailed(f"{self._url}: {error}") from None


def read_completion(data: bytes) -> Answer:
    """The first choice of a chat completion, with vLLM's `token_ids` if there. Raises ValueError for anything else."""
    try:
        choice = json.loads(data)["choices"][0]
        text, ids = choice["message"]["content"] or "", choice.get("token_ids")
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not a chat completion: {error!r}") from None
    if not isinstance(text, str):
        raise ValueError("is not a chat completion: its content is not text")
    return Answer(text, tuple(ids) if isinstance(ids, list) else None)


class KolmServer:
    """A generation service of kolm with one method."""

    def __init__(self, address: str, method: str) -> None:
        self.name = f"{address} with {method}"
        self._runtime = Runtime.connect(address)
        self._spec_decode = SpecDecodeConfig(method=method)

    def answer(self, asked: Asked) -> Answer:
        request = Request(
            messages=[Message(role, content) for role, content in asked.messages],
            sampling=SamplingParams(max_tokens=asked.max_tokens, temperature=asked.temperature, seed=asked.seed),
        )
        try:
            completion = self._runtime.serve(request, spec_decode=self._spec_decode)
        except KolmError as error:
            raise ServerFailed(f"{self.name}: {error}") from None
        return Answer(completion.text, completion.token_ids)


def messages_of(turns: Sequence[str], answers: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The prompt of the turn after `answers`."""
    pairs = zip(turns, answers, strict=False)
    earlier = [each for turn, answer in pairs for each in (("user", turn), ("assistant", answer))]
    return (*earlier, ("user", turns[len(answers)]))


@dataclass(frozen=True, slots=True)
class Compared:
    """One request's answers: plain, plain once more, and with speculation."""

    question: str
    kind: str
    turn: int
    plain: Answer
    again: Answer
    speculated: Answer


def compare(
    questions: Iterable[Question],
    plain: Server,
    speculating: Server,
    ask: Callable[[tuple[tuple[str, str], ...]], Asked],
) -> Iterable[Compared]:
    """Every turn of every question. All prompts go on from the plain answers, so that one difference makes no others.

    The plain server is asked twice: a server that does not repeat itself differs without speculation, too.
    Raises ServerFailed.
    """
    for question in questions:
        answers: list[str] = []
        for turn in range(len(question.turns)):
            asked = ask(messages_of(question.turns, answers))
            first, with_drafts, second = plain.answer(asked), speculating.answer(asked), plain.answer(asked)
            yield Compared(question.name, question.kind, turn, first, second, with_drafts)
            answers.append(first.text)


def report(compared: Sequence[Compared]) -> dict[str, Any]:
    """Shares of identical answers with 95 % intervals, in all and by kind, and the first differences of the others."""
    kinds = dict.fromkeys(each.kind for each in compared)
    different = [each for each in compared if not same(each.plain, each.speculated)]
    return {
        "requests": len(compared),
        "compared by": "token ids" if all(_by_tokens(each) for each in compared) else "text",
        "speculation = plain": _share(compared, "speculated"),
        "plain = plain again": _share(compared, "again"),
        "kinds": {kind: _share([each for each in compared if each.kind == kind], "speculated") for kind in kinds},
        "different": [
            {
                "question": each.question,
                "turn": each.turn,
                "first difference": first_difference(each.plain, each.speculated),
                "plain repeats itself": same(each.plain, each.again),
            }
            for each in different
        ],
    }


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are equal: by token ids if both have them, else by text."""
    return first_difference(one, other) is None


def first_difference(one: Answer, other: Answer) -> int | None:
    """The first position that differs, of tokens if both have ids and else of characters; None if they are equal."""
    if one.token_ids is not None and other.token_ids is not None:
        left: Sequence[Any] = one.token_ids
        right: Sequence[Any] = other.token_ids
    else:
        left, right = one.text, other.text
    if left == right:
        return None
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )


def interval(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (E. B. Wilson 1927), which is right at 0 and 1, too."""
    share, square = successes / count, _NORMAL_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_95 * sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _share(compared: Sequence[Compared], which: str) -> dict[str, Any]:
    identical = sum(same(each.plain, getattr(each, which)) for each in compared)
    low, high = interval(identical, len(compared))
    return {
        "identical": identical,
        "of": len(compared),
        "share": round(identical / len(compared), 4),
        "95 %": [round(low, 4), round(high, 4)],
    }


def _by_tokens(each: Compared) -> bool:
    return all(answer.token_ids is not None for answer in (each.plain, each.again, each.speculated))


def main() -> int:
    """The exit code: 0 if all are identical, 1 if some differ, 2 for a wrong command line or no answer."""
    arguments = _arguments()
    try:
        plain, speculating = _servers(arguments)
        questions = first(load_questions(arguments.questions), arguments.prompts)
        found = _compared([each for kind in questions.values() for each in kind], plain, speculating, arguments)
    except (ServerFailed, QuestionsInvalid) as error:
        print(f"benchmarks.identity: {error}", file=sys.stderr)
        return 2
    document = {
        "machine": asdict(Machine.here()),
        "plain": plain.name,
        "speculating": speculating.name,
        "temperature": arguments.temperature,
        "max_tokens": arguments.max_tokens,
        **report(found),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    for name in ("speculation = plain", "plain = plain again"):
        each = document[name]
        print(f"{name}: {each['identical']} of {each['of']} requests, by {document['compared by']}")
    return 0 if not document["different"] else 1


def _compared(questions: list[Question], plain: Server, speculating: Server, arguments: Any) -> list[Compared]:
    def ask(messages: tuple[tuple[str, str], ...]) -> Asked:
        return Asked(messages, arguments.max_tokens, arguments.temperature, arguments.seed)

    requests = sum(len(question.turns) for question in questions)
    return list(track(compare(questions, plain, speculating, ask), "asking", total=requests))


def _servers(arguments: argparse.Namespace) -> tuple[Server, Server]:
    """Plain and speculating. Raises ServerFailed for a combination that names no two different ones."""
    if arguments.kolm:
        return KolmServer(arguments.kolm, "off"), KolmServer(arguments.kolm, arguments.method)
    if not arguments.base_url:
        raise ServerFailed("expected --base-url URL or --kolm HOST:PORT")
    if not (arguments.plain_url or arguments.plain_extra):
        raise ServerFailed(
            "expected --plain-url with a server without speculation, or --plain-extra with members that turn it off"
        )
    key = os.environ.get("OPENAI_API_KEY", "")
    plain = OpenAIServer(arguments.plain_url or arguments.base_url, arguments.model, key, arguments.plain_extra)
    return plain, OpenAIServer(arguments.base_url, arguments.model, key, arguments.extra)


def members(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.identity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", help="an OpenAI-compatible server that speculates, up to /v1")
    parser.add_argument("--plain-url", help="a server of the same model without speculation")
    parser.add_argument("--model", default="default", help="the model's name in requests")
    parser.add_argument("--extra", type=members, help="JSON object added to the speculating requests")
    parser.add_argument("--plain-extra", type=members, help="JSON object added to the plain requests")
    parser.add_argument(
        "--kolm", metavar="HOST:PORT", help="address of a generation service of kolm, instead of --base-url"
    )
    parser.add_argument("--method", default="auto", help="draft method to compare with off, for --kolm (auto)")
    parser.add_argument("--questions", type=Path, default=OWN, help="a question.jsonl of Spec-Bench (our own)")
    parser.add_argument("--prompts", type=int, default=20, help="number of questions of each kind (20)")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of an answer (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")
    parser.add_argument("--seed", type=int, default=7, help="seed of every request (7)")
    parser.add_argument("--out", type=Path, default=RESULTS / "local" / "identity.json", help="the JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        from benchmarks import exactness

        sys.exit(exactness.main(sys.argv[2:]))
    sys.exit(main())
