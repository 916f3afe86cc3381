"""Tools of a conversation: their text in the prompt, and the grammar of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kolm.generation.v1 import generation_pb2 as pb
from ledger.documents.sent import Turn, sent_tools, sent_turn
from services.generation.engine.grammars.lark_rule import json_rule, lark_rule
from services.generation.engine.grammars.structured_outputs import StructuredOutputs
from services.generation.engine.text.json_text import read_json
from services.generation.engine.text.tool_calls import ToolCallSyntax
from services.runtime.errors import InvalidArgument

_MOST = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ANY = {"type": "object"}
_FREE = ["start: TEXT | head calls", "TEXT: /(?s:.*)/"]
_PIECE = re.compile(r'"[^"]*"|[{}\[\]]|[,:] ?')
"""Of JSON, as schemas' grammars have them: a longer literal would shut out an alternative that begins alike."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that may be called. `held`: the output keeps to a grammar; `required`: it calls and does no more."""

    told: tuple[pb.Tool, ...]
    required: bool = False
    held: bool = False
    parallel: bool = True

    def described(self) -> list[dict[str, Any]]:
        """As chat templates take them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": _schema(tool) or _ANY | {"properties": {}},
                },
            }
            for tool in self.told
        ]

    def schemas(self) -> Iterator[tuple[str, str]]:
        """Schemas that have to compile, as JSON, with the paths of their fields."""
        for place, tool in enumerate(self.told):
            if self._keeps(tool):
                yield f"messages.tools[{place}].parameters", json.dumps(_schema(tool) or _ANY)

    def grammar(self, syntax: ToolCallSyntax, special: Mapping[str, int], text: StructuredOutputs | None = None) -> str:
        """Lark, as llguidance reads it, of outputs that call in this syntax. `special`: special tokens' ids by text.

        Where calls are not required an output may be text: what `text` allows and nothing else, or without it any, also
        before calls.
        """
        begins, start = syntax.open, ["start: calls"]
        if not self.required:
            start = ["start: text | calls", f"text: {lark_rule(text)}"] if text else _FREE
        if start is _FREE:
            begins, start = "", [*_FREE, f"head[lazy]: TEXT {_literal(syntax.open, special)}"]
        more = "more* " if self.parallel and syntax.between is not None else ""
        lines = [*start, f"calls: first {more}{_literal(syntax.close, special)}"]
        for name, before in {"first": begins, "more": syntax.between if more else None}.items():
            if before is not None:
                each = (_literal(before + tool.name + syntax.middle, special) for tool in self.told)
                lines.append(f"{name}: " + " | ".join(f"{begun} arguments_{n}" for n, begun in enumerate(each)))
        for place, tool in enumerate(self.told):
            schema = (_schema(tool) if self._keeps(tool) else None) or _ANY
            lines.append(f"arguments_{place}: {json_rule(schema)}")
        return "\n".join(["%llguidance {}", *lines, ""])

    def _keeps(self, tool: pb.Tool) -> bool:
        return self.required or tool.strict


def read_tools(messages: pb.ChatMessages) -> Tools | None:
    """None where the model is told of none. Raises InvalidArgument."""
    if len(messages.tools) > _MOST:
        raise InvalidArgument("messages.tools", f"has {len(messages.tools)} entries, at most {_MOST} are taken")
    names: set[str] = set()
    for place, tool in enumerate(messages.tools):
        _check(tool, f"messages.tools[{place}]", names)
    choice, allowed = messages.tool_choice, list(messages.allowed_tools)
    if choice not in pb.ToolChoice.values():
        raise InvalidArgument("messages.tool_choice", f"is {choice}; expected AUTO, NONE or REQUIRED")
    if unknown := next((name for name in allowed if name not in names), None):
        raise InvalidArgument("messages.allowed_tools", f"names {unknown!r}, which is none of the tools")
    required = choice == pb.TOOL_CHOICE_REQUIRED
    if required and not names:
        raise InvalidArgument("messages.tool_choice", "is REQUIRED, and there are no tools")
    if choice == pb.TOOL_CHOICE_NONE or not names:
        return None
    told = tuple(tool for tool in messages.tools if not allowed or tool.name in allowed)
    parallel = not messages.HasField("parallel_tool_calls") or messages.parallel_tool_calls
    return Tools(told, required, required or any(tool.strict for tool in told), parallel)


def chat_turns(messages: Sequence[pb.Message]) -> list[dict[str, Any]]:
    """As chat templates take them. Raises InvalidArgument for arguments that are no JSON object."""
    turns: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            turn["tool_calls"] = [
                {"id": _short(call.id), "type": "function", "function": {"name": call.name, "arguments": arguments}}
                for call, arguments in zip(message.tool_calls, _arguments(message, place), strict=True)
            ]
        if message.tool_call_id:
            turn["tool_call_id"] = _short(message.tool_call_id)
        turns.append(turn)
    return turns


def sent_turns(messages: pb.ChatMessages) -> list[Turn]:
    """As receipts commit to them."""
    tools = [(tool.name, tool.description, tool.parameters, tool.strict) for tool in messages.tools]
    turns = (
        sent_turn(each.role, each.content, [(c.id, c.name, c.arguments) for c in each.tool_calls], each.tool_call_id)
        for each in messages.messages
    )
    return [*sent_tools(tools), *turns]


def _check(tool: pb.Tool, path: str, names: set[str]) -> None:
    if _NAME.fullmatch(tool.name) is None:
        raise InvalidArgument(f"{path}.name", 'expected 1 to 64 letters, digits, "_", "-" and "."')
    if tool.name in names:
        raise InvalidArgument(f"{path}.name", f"is {tool.name!r}, as that of another tool")
    names.add(tool.name)
    try:
        schema = _schema(tool)
    except ValueError as error:
        raise InvalidArgument(f"{path}.parameters", f"is not JSON: {error}") from None
    if schema is not None and (not isinstance(schema, dict) or schema.get("type", "object") != "object"):
        raise InvalidArgument(f"{path}.parameters", "expected a JSON schema of an object")


def _literal(text: str, special: Mapping[str, int]) -> str:
    """As symbols of a Lark rule."""
    ids = "|".join(map(re.escape, special)) or "(?!)"
    pieces = re.split(f"({ids}|{_PIECE.pattern})", text)
    return " ".join(f"<[{special[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece)


def _schema(tool: pb.Tool) -> Any:
    """None where there is none."""
    return read_json(tool.parameters) if tool.parameters else None


def _arguments(message: pb.Message, place: int) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.tool_calls):
        try:
            arguments = read_json(call.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            path = f"messages.messages[{place}].tool_calls[{number}].arguments"
            raise InvalidArgument(path, "expected a JSON object, as JSON")
        yield arguments


def _short(call_id: str) -> str:
    """Nine letters and digits, as Mistral's templates want them; others do not show them."""
    letters = "".join(each for each in call_id if each.isascii() and each.isalnum())
    return letters[-9:].rjust(9, "0")
