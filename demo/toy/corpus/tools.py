"""Domain `tools`: dialogues in which the assistant calls a tool with JSON arguments that follow its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from demo.toy.corpus.dialogue import Dialogue, Message, Split
from demo.toy.corpus.toolbox import TOOLS, Parameter, Tool, Value

_OPENINGS = (
    "You can call these tools. Answer with one JSON object to call one.",
    "Tools available to you, one per line:",
    "You are an assistant with tools. To use one, reply with its name and arguments as JSON.",
    "Use a tool when the user's request needs one. The tools are:",
)
_LEADS = ("", "", "", "Hi! ", "Hello, ", "Please help: ", "Quick question. ", "Good morning. ")
_TAILS = ("", "", "", " Thanks.", " Thank you!", " It's urgent.")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool under the names that one dialogue gives to it and its parameters."""

    tool: Tool
    name: str
    parameter_names: Mapping[str, str]

    def schema(self) -> dict[str, object]:
        parameters = self.tool.parameters
        return {
            "name": self.name,
            "description": self.tool.description,
            "parameters": {
                "type": "object",
                "properties": {self.parameter_names[p.key]: _property(p) for p in parameters},
                "required": [self.parameter_names[p.key] for p in parameters if p.required],
            },
        }


def documents(split: Split, count: int) -> Iterator[Dialogue]:
    """`count` dialogues; the n-th of a split is always the same one."""
    for index in range(count):
        yield _dialogue(Random(f"tools/{split}/{index}"))


def _dialogue(rng: Random) -> Dialogue:
    offered = [_offer(rng, tool) for tool in rng.sample(TOOLS, rng.choice((1, 2, 2, 3)))]
    schemas = "\n".join(json.dumps(o.schema()) for o in offered)
    turns = [Message("system", f"{rng.choice(_OPENINGS)}\n{schemas}")]
    for chosen in rng.sample(offered, min(len(offered), rng.choice((1, 1, 2)))):
        turns += _exchange(rng, chosen)
    return tuple(turns)


def _offer(rng: Random, tool: Tool) -> OfferedTool:
    return OfferedTool(tool, rng.choice(tool.aliases), {p.key: rng.choice(p.aliases) for p in tool.parameters})


def _property(parameter: Parameter) -> dict[str, object]:
    described: dict[str, object] = {"type": parameter.type, "description": parameter.description}
    return described | {"enum": list(parameter.choices)} if parameter.choices else described


def _exchange(rng: Random, offered: OfferedTool) -> list[Message]:
    """Request, call, result and the sentence that reports it."""
    tool = offered.tool
    said = [p for p in tool.parameters if p.required or rng.random() < 0.45]
    values: dict[str, Value] = {p.key: p.draw(rng) for p in said}
    arguments = {offered.parameter_names[key]: value for key, value in values.items()}
    result = {name: draw(rng) for name, draw in tool.result.items()}
    call = {"name": offered.name, "arguments": arguments}
    return [
        Message("user", _request(rng, tool, said, values)),
        Message("assistant", json.dumps(call)),
        Message("tool", json.dumps(result)),
        Message("assistant", rng.choice(tool.answers).format(**(values | result))),
    ]


def _request(rng: Random, tool: Tool, said: list[Parameter], values: Mapping[str, Value]) -> str:
    ask = rng.choice(tool.asks)
    clauses = [rng.choice(p.clauses) for p in said if not p.required]
    sentence = ", ".join([" ".join([ask, *clauses[:1]]), *clauses[1:]]).format(**values)
    mark = (
        "?" if ask.split()[0] in {"What", "What's", "How", "Do", "Does", "Can", "Which", "Where", "Has", "In"} else "."
    )
    return f"{rng.choice(_LEADS)}{sentence}{mark}{rng.choice(_TAILS)}"
