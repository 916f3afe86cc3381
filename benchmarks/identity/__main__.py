"""`python -m benchmarks.identity`: the share of requests whose output with speculation is that of plain decoding.

Between two servers with OpenAI's chat completions, one server that a member of the request turns speculation off for,
or two methods of a kolm server:

    python -m benchmarks.identity --base-url http://127.0.0.1:8001/v1 --plain-url http://127.0.0.1:8000/v1 --model NAME
    python -m benchmarks.identity --base-url http://127.0.0.1:8000/v1 --model NAME --plain-extra '{"draft": false}'
    python -m benchmarks.identity --kolm 127.0.0.1:50051 --method lookahead
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.identity.comparison import Compared, compare, report
from benchmarks.identity.servers import Asked, KolmServer, OpenAIServer, Server, ServerFailed
from benchmarks.machine import RESULTS, machine
from benchmarks.specbench.questions import OWN, Question, QuestionsInvalid, first, load_questions


def main() -> int:
    """0 where all are identical, 1 where some are not, 2 for a wrong command line or no answer."""
    arguments = _arguments()
    try:
        plain, speculating = _servers(arguments)
        questions = first(load_questions(arguments.questions), arguments.prompts)
        found = _compared([each for kind in questions.values() for each in kind], plain, speculating, arguments)
    except (ServerFailed, QuestionsInvalid) as error:
        print(f"benchmarks.identity: {error}", file=sys.stderr)
        return 2
    document = {
        "machine": machine(),
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
            "expected --plain-url with a server without speculation, or --plain-extra with what turns it off"
        )
    key = os.environ.get("OPENAI_API_KEY", "")
    plain = OpenAIServer(arguments.plain_url or arguments.base_url, arguments.model, key, arguments.plain_extra)
    return plain, OpenAIServer(arguments.base_url, arguments.model, key, arguments.extra)


def _members(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.identity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", help="an OpenAI-compatible server that speculates, up to /v1")
    parser.add_argument("--plain-url", help="the same model served without speculation")
    parser.add_argument("--model", default="default", help="the model's name in requests")
    parser.add_argument("--extra", type=_members, help="JSON object added to the speculating requests")
    parser.add_argument("--plain-extra", type=_members, help="JSON object added to the plain requests")
    parser.add_argument("--kolm", metavar="HOST:PORT", help="a generation service of kolm instead")
    parser.add_argument("--method", default="auto", help="of --kolm, beside off (auto)")
    parser.add_argument("--questions", type=Path, default=OWN, help="a question.jsonl of Spec-Bench (our own)")
    parser.add_argument("--prompts", type=int, default=20, help="questions of each kind (20)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of an answer at most (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")
    parser.add_argument("--seed", type=int, default=7, help="sent with every request (7)")
    parser.add_argument("--out", type=Path, default=RESULTS / "identity.json", help="the JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
