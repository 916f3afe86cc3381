"""A request's prompt as tokens, with the tools of a conversation and the grammar of their calls."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kolm.generation.v1 import generation_pb2 as pb
from ledger.documents.content import SentCall, SentTool, Turn, continued_turns, sent_infill, sent_tools, sent_turn
from ledger.encoding.canonical import canonical
from services.generation.engine.request import StructuredOutputs
from services.generation.engine.text.conversation import MarkupInText
from services.generation.engine.text.grammar import lark_rule
from services.generation.engine.text.json_schema import SchemaRefused, read_json, read_schema, schema_rule
from services.generation.engine.text.tenant_threads import REMOTE_THREADS, TenantThreads
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.engine.text.tool_calls import ToolCallSyntax
from services.runtime.errors import InvalidArgument

CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
"""OpenAI's code. Routers recognise it, or the words "this model's maximum context length", and try another model."""
_MOST = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # as Anthropic's API takes
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANY = {"type": "object"}
_SHAPES = "<[{"  # beginnings of an opening that other text does not have
_PIECE = re.compile(r'"[^"]*"|[{}\[\]]|[,:] ?')
"""A piece of JSON, as in grammars of schemas: a longer literal would exclude an alternative with the same beginning."""
_LONGEST_TOKEN_BYTES = 256  # longest token of any tokenizer in use; a longer text than this for each token cannot fit
_MOST_IDS = 1 << 20  # in one call of Detokenize
_INLINE_BYTES = 4096  # shorter texts are read on the event loop, in well under a millisecond

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that may be called. `held`: the output follows a grammar; `required`: it consists of calls."""

    shown: tuple[pb.Tool, ...]
    required: bool = False
    held: bool = False
    parallel: bool = True

    def described(self) -> list[dict[str, Any]]:
        """The tools in the form of chat templates."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": _schema(tool) or _ANY | {"properties": {}},
                },
            }
            for tool in self.shown
        ]

    @property
    def only_single(self) -> bool:
        """Whether the output follows a grammar only to have a single call."""
        return not self.parallel and not any(map(self._keeps, self.shown))

    def schemas(self) -> Iterator[tuple[str, str]]:
        """Schemas that have to compile, as JSON, with their field paths."""
        for place, tool in enumerate(self.shown):
            if self._keeps(tool):
                given = tool.parameters.strip() not in ("", "null")
                yield f"messages.tools[{place}].parameters", tool.parameters if given else json.dumps(_ANY)

    def grammar(
        self,
        syntax: ToolCallSyntax,
        markup: Mapping[str, int],
        hidden: Collection[str] = (),
        text: StructuredOutputs | None = None,
    ) -> str:
        """A Lark grammar for llguidance of outputs that call in this syntax. `markup`: token ids by text; `hidden`:
        texts that decoded outputs omit.

        If calls are not required, an output may be text that `text` allows or, without `text`, any text, also before
        calls.
        """
        write = _Symbols(markup)
        begins, start = syntax.open, ["start: calls"]
        if not self.required and text is not None:
            start = ["start: text | calls", f"text: {lark_rule(text)}"]
        elif not self.required:
            begins, start = "", write.free_text(syntax.open, syntax.without(hidden).open)
        more = "more* " if self.parallel and syntax.between is not None else ""
        lines = [*start, f"calls: first {more}{write.literal(syntax.close)} {_blank_after(syntax)}"]
        for name, before in {"first": begins, "more": syntax.between if more else None}.items():
            if before is not None:
                each = (
                    f"{write.literal(before, tool.name, middle)} arguments_{place}"
                    for place, tool in enumerate(self.shown)
                    for middle in syntax.middles
                )
                lines.append(f"{name}: " + " | ".join(each))
        for place, tool in enumerate(self.shown):
            schema = read_schema(tool.parameters) if self._keeps(tool) and tool.parameters else None
            lines.append(f"arguments_{place}: {schema_rule(_ANY | (schema or {}))}")
        return "\n".join(["%llguidance {}", *lines, ""])

    def _keeps(self, tool: pb.Tool) -> bool:
        return self.required or tool.strict


def read_tools(messages: pb.ChatMessages) -> Tools | None:
    """The tools of a conversation; None if the model is shown none. Raises InvalidArgument."""
    if len(messages.tools) > _MOST:
        raise InvalidArgument("messages.tools", f"has {len(messages.tools)} entries, at most {_MOST} are taken")
    names: set[str] = set()
    for place, tool in enumerate(messages.tools):
        _check(tool, f"messages.tools[{place}]", names)
    choice, allowed = messages.tool_choice, dict.fromkeys(messages.allowed_tools)
    if choice not in pb.ToolChoice.values():
        raise InvalidArgument("messages.tool_choice", f"is {choice}; expected AUTO, NONE or REQUIRED")
    if unknown := next((name for name in allowed if name not in names), None):
        raise InvalidArgument("messages.allowed_tools", f"names {unknown!r}, which is not one of the tools")
    required = choice == pb.TOOL_CHOICE_REQUIRED
    if required and not names:
        raise InvalidArgument("messages.tool_choice", "is REQUIRED, and there are no tools")
    if choice == pb.TOOL_CHOICE_NONE or not names:
        return None
    shown = tuple(tool for tool in messages.tools if not allowed or tool.name in allowed)
    parallel = not messages.HasField("parallel_tool_calls") or messages.parallel_tool_calls
    return Tools(shown, required, required or not parallel or any(tool.strict for tool in shown), parallel)


def chat_turns(messages: Sequence[pb.Message]) -> list[dict[str, Any]]:
    """The messages in the form of chat templates.

    Raises InvalidArgument for a role that is not a word, and for arguments that are not a JSON object.
    """
    turns: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if _ROLE.fullmatch(message.role) is None:  # templates write it between markup, unescaped
            path = f"messages.messages[{place}].role"
            raise InvalidArgument(path, f'is {message.role[:80]!r}; expected 1 to 64 letters, digits, "_" and "-"')
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            turn["tool_calls"] = [
                {"id": _short(call.id), "type": "function", "function": {"name": call.name, "arguments": arguments}}
                for call, arguments in zip(message.tool_calls, _arguments(message, place), strict=True)
            ]
        if message.tool_call_id:
            turn["tool_call_id"] = _short(message.tool_call_id)
        if message.reasoning_content:
            turn["reasoning_content"] = message.reasoning_content
        turns.append(turn)
    return turns


def sent_turns(messages: pb.ChatMessages) -> list[Turn]:
    """The messages in the form that receipts commit to."""
    tools = [SentTool(tool.name, tool.description, tool.parameters, tool.strict) for tool in messages.tools]
    turns = (
        sent_turn(
            each.role,
            each.content,
            [SentCall(c.id, c.name, c.arguments) for c in each.tool_calls],
            each.tool_call_id,
            each.reasoning_content,
        )
        for each in messages.messages
    )
    sent = [*sent_tools(tools), *turns]
    return continued_turns(sent) if messages.continue_final_message else sent


def _check(tool: pb.Tool, path: str, names: set[str]) -> None:
    if _NAME.fullmatch(tool.name) is None:
        raise InvalidArgument(f"{path}.name", 'expected 1 to 128 letters, digits, "_", "-" and "."')
    if tool.name in names:
        raise InvalidArgument(f"{path}.name", f"is {tool.name!r}, the name of another tool")
    names.add(tool.name)
    try:
        schema = _schema(tool)
    except SchemaRefused as error:
        raise InvalidArgument(f"{path}.parameters", str(error)) from None
    except ValueError as error:
        raise InvalidArgument(f"{path}.parameters", f"is not JSON: {error}") from None
    if schema is not None and (not isinstance(schema, dict) or schema.get("type", "object") != "object"):
        raise InvalidArgument(f"{path}.parameters", "expected a JSON schema of an object")


class _Symbols:
    """Writes texts of a template as symbols of Lark rules: markup as token ids, other text as literals."""

    def __init__(self, markup: Mapping[str, int]) -> None:
        longest_first = sorted(markup, key=len, reverse=True)
        self._markup, self._marks = markup, re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def literal(self, before: str, name: str = "", after: str = "") -> str:
        """Symbols of a text. `before` and `after` may contain markup; `name` is from the caller and is text."""
        symbols, text = list[str](), ""
        for part in (*self._parts(before), name, *self._parts(after)):
            if isinstance(part, int):
                symbols += [*_pieces(text), f"<[{part}]>"]
                text = ""
            else:
                text += part
        return " ".join(symbols + _pieces(text))

    def free_text(self, opening: str, visible: str) -> list[str]:
        """Rules of an output of any text and markup, until `opening` begins calls. `visible`: the opening in decoded
        text. A model may write it in ordinary tokens too, and readers would parse it as a call.
        """
        found = self._marks.search(opening)
        others = sorted({*self._markup.values()} - ({self._markup[found[0]]} if found else set()))
        lead = "(TEXT? other)* " if others else ""
        rules = {"start": f"{lead}TEXT?", "TEXT": "/(?s:.+)/"}
        if others:
            rules["other"] = f"<[{','.join(map(str, others))}]>"
        if found:
            rules["start"] += " (head calls)?"
            rules["head"] = self.literal(opening[found.start() :])
        if not found or visible.lstrip()[:1] in tuple(_SHAPES):
            rules["start"] += f" | {lead}spelled calls"
            rules["spelled[lazy]"] = "/(?s:.*)/ " + " ".join(_pieces(visible))
        return [f"{name}: {body}" for name, body in rules.items()]

    def _parts(self, text: str) -> Iterator[str | int]:
        end = 0
        for found in self._marks.finditer(text):
            yield text[end : found.start()]
            yield self._markup[found[0]]
            end = found.end()
        yield text[end:]


def _blank_after(syntax: ToolCallSyntax) -> str:
    """Optional blanks between two calls at the end of an output: after them a further call is not required."""
    between = (syntax.between or "").removeprefix(syntax.close)
    blank = between[: len(between) - len(between.lstrip())]
    return f"({json.dumps(blank)})?" if blank and between != syntax.between else ""


def _pieces(text: str) -> list[str]:
    return [json.dumps(piece, ensure_ascii=False) for piece in re.split(f"({_PIECE.pattern})", text) if piece]


def _schema(tool: pb.Tool) -> Any:
    """A tool's schema of parameters; None without one."""
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


def _check_continued(last: pb.Message) -> None:
    """Raises InvalidArgument unless the model can continue this message."""
    if last.role != "assistant" or last.tool_calls:
        found = "calls tools" if last.tool_calls else f"is of the role {last.role[:80]!r}"
        raise InvalidArgument(
            "messages.continue_final_message",
            f"the last message {found}; expected a message of the assistant without calls",
        )


def _path(path: str, chat: pb.ChatMessages, tools: Tools | None) -> str:
    """The request's path for a path within a conversation, in which tools that the model is not shown are missing."""
    place = re.match(r"tools\[(\d+)\]", path)
    if place is None or tools is None:
        return f"messages.{path}"
    name = tools.shown[int(place[1])].name
    index = next(index for index, tool in enumerate(chat.tools) if tool.name == name)
    return f"messages.tools[{index}]{path[place.end() :]}"


def _short(call_id: str) -> str:
    """Nine letters and digits, required by Mistral's templates; other templates do not show ids."""
    letters = "".join(each for each in call_id if each.isascii() and each.isalnum())
    return letters[-9:].rjust(9, "0")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens.

    Attributes:
        field: the request's field, for errors. token_ids: the prompt. text: the prompt as sent; for a conversation the
        canonical JSON of `ledger.documents.content`; None for token ids. tools: tools that the model is shown.
        in_turns: whether `text` is canonical JSON. ends: tokens that end the output, besides the model's.
    """

    field: str
    token_ids: tuple[int, ...]
    text: str | None = None
    tools: Tools | None = None
    in_turns: bool = False
    ends: tuple[int, ...] = ()


class PromptReader:
    """Reads prompts for a model of `context_length` tokens; texts of more than `max_bytes` are refused unread."""

    def __init__(self, tokenizer: TextCodec, context_length: int, max_bytes: int) -> None:
        self.tokenizer = tokenizer
        self._context_length = context_length
        self._max_bytes = max_bytes
        self.threads = TenantThreads(REMOTE_THREADS if tokenizer.is_remote else min(32, (os.cpu_count() or 1) + 4))

    async def read(self, request: pb.GenerateRequest) -> Prompt:
        """Raises InvalidArgument naming prompt, messages or token_ids."""
        tenant = request.tenant
        kind = request.WhichOneof("input")
        if request.suffix and kind not in ("prompt", None):
            raise InvalidArgument("suffix", f"cannot be combined with {kind}; send the text before it as prompt")
        if kind == "token_ids":
            self._check_fits("token_ids", request.token_ids.ids)  # before they are copied
            return Prompt("token_ids", tuple(request.token_ids.ids))
        if kind == "messages":
            prompt = await self._chat(request.messages, tenant)
            self._check_fits("messages", prompt.token_ids)
            return prompt
        if request.suffix:
            return await self._infill(request.prompt, request.suffix, tenant)
        if kind == "prompt" and request.prompt:
            ids = await self._encoded("prompt", request.prompt, self.tokenizer.encode, tenant)
            self._check_fits("prompt", ids)
            return Prompt("prompt", ids, request.prompt)
        raise InvalidArgument("prompt", "is empty; expected text, messages or token_ids")

    async def tokens(self, request: pb.TokenizeRequest, tenant: str) -> tuple[int, ...]:
        """Token ids of any number. Raises InvalidArgument naming prompt or messages."""
        kind = request.WhichOneof("input")
        if kind == "messages":
            return (await self._chat(request.messages, tenant)).token_ids
        if kind is None:
            raise InvalidArgument("prompt", "is missing; expected text or messages")
        plain = request.HasField("add_special_tokens") and not request.add_special_tokens
        encode = self.tokenizer.encode_output if plain else self.tokenizer.encode
        return await self._encoded("prompt", request.prompt, encode, tenant)

    async def text(self, token_ids: Sequence[int], vocab_size: int, tenant: str) -> str:
        """The text with special tokens. Raises InvalidArgument for invalid ids, or too many."""
        if len(token_ids) > _MOST_IDS:
            raise InvalidArgument("token_ids", f"has {len(token_ids)} entries, at most {_MOST_IDS} are taken")
        if (largest := max(token_ids, default=0)) >= vocab_size:
            raise InvalidArgument("token_ids", f"holds {largest}; expected whole numbers from 0 to {vocab_size - 1}")
        try:
            return await self.threads.run(lambda: self.tokenizer.decode_all(token_ids), tenant)
        except ValueError as error:
            raise InvalidArgument("token_ids", str(error)) from error

    async def prediction(self, text: str, vocab_size: int, tenant: str) -> tuple[int, ...]:
        """Token ids of the expected output, without tokens that the model cannot write: a tokenizer may have more than
        the model's vocabulary. Raises InvalidArgument naming it if it is longer than a context.
        """
        ids = await self._encoded("prediction", text, self.tokenizer.encode_output, tenant) if text else ()
        if len(ids) > self._context_length:
            raise InvalidArgument(
                "prediction", f"has {len(ids)} tokens, expected at most the {self._context_length} of a context"
            )
        return tuple(token for token in ids if token < vocab_size)

    async def _chat(self, chat: pb.ChatMessages, tenant: str) -> Prompt:
        messages = chat.messages
        if not messages:
            raise InvalidArgument("messages", "is empty; expected at least one message")
        if not self.tokenizer.has_chat_template:
            raise InvalidArgument("messages", "this model has no chat template; send prompt or token_ids")
        parts = len(messages) + sum(len(each.tool_calls) for each in messages)
        if parts > self._context_length:
            raise self._too_long("messages", f"{parts} messages and calls")
        if chat.continue_final_message:
            _check_continued(messages[-1])

        def texts() -> list[str]:
            return [text for turn in sent_turns(chat) for text in turn.values()]

        return await self._read("messages", chat.ByteSize(), partial(self._rendered, chat), tenant, texts)

    def _rendered(self, chat: pb.ChatMessages) -> Prompt:
        """The prompt of a conversation. Raises InvalidArgument; ValueError as `encode_chat`."""
        tools, sent = read_tools(chat), sent_turns(chat)
        turns, described = chat_turns(chat.messages), tools.described() if tools else []
        try:
            ids = self.tokenizer.encode_chat(turns, described, continued=chat.continue_final_message)
        except MarkupInText as error:
            raise InvalidArgument(_path(error.path, chat, tools), str(error)) from error
        return Prompt("messages", tuple(ids), canonical(sent).decode(), tools, in_turns=True)

    async def _infill(self, prefix: str, suffix: str, tenant: str) -> Prompt:
        if (marks := self.tokenizer.infill) is None:
            why = "this model's tokenizer has no marks for filling in the middle, or they are not known; leave it out"
            raise InvalidArgument("suffix", why)
        encode, size = (
            partial(self.tokenizer.encode_infill, prefix, suffix),
            len(prefix.encode()) + len(suffix.encode()),
        )
        ids = tuple(await self._read("prompt", size, encode, tenant, lambda: [prefix, suffix]))
        self._check_fits("prompt", ids)
        sent = canonical(sent_infill(prefix, suffix)).decode()
        return Prompt("prompt", ids, sent, in_turns=True, ends=marks.ends)

    async def _encoded(self, field: str, text: str, encode: Callable[[str], list[int]], tenant: str) -> tuple[int, ...]:
        return tuple(await self._read(field, len(text.encode()), partial(encode, text), tenant))

    async def _read(
        self,
        field: str,
        size: int,
        read: Callable[[], _Made],
        tenant: str,
        as_text: Callable[[], list[str]] = list,
    ) -> _Made:
        """Read input of `size` bytes, on a thread if that may take long; nothing of input that is too long is read.
        `as_text`: returns the texts in which markup is encoded as text. Raises InvalidArgument.
        """
        if size > self._max_bytes:
            raise InvalidArgument(field, f"measures {size} bytes, at most {self._max_bytes} are taken")
        if size > _LONGEST_TOKEN_BYTES * self._context_length:
            raise self._too_long(field, f"{size} bytes")
        near = size <= _INLINE_BYTES and not self.tokenizer.is_remote
        near = near and not self.tokenizer.may_spell_markup(as_text())
        try:
            return read() if near else await self.threads.run(read, tenant)
        except ValueError as error:
            raise InvalidArgument(field, str(error)) from error

    def _check_fits(self, field: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidArgument(field, "has no tokens; expected at least one")
        if len(token_ids) >= self._context_length:
            raise self._too_long(field, f"{len(token_ids)} tokens")

    def _too_long(self, field: str, size: str) -> InvalidArgument:
        longest = f"this model's maximum context length is {self._context_length} tokens"
        description = f"{size} leave no room for output: {longest}"
        return InvalidArgument(field, description, reason=CONTEXT_LENGTH_EXCEEDED)
