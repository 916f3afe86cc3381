"""Constraints on the output as the wire has them, and the grammars that they become."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kolm.generation.v1 import sampling_pb2 as pb
from ledger.encoding.canonical import canonical
from services.generation.engine.engine_error import InvalidRequest
from services.generation.engine.grammars.compiler import GrammarCompiler
from services.generation.engine.grammars.grammar import Grammar
from services.generation.engine.grammars.structured_outputs import StructuredOutputs, grammar_engine
from services.generation.engine.text.tool_calls import ToolCallSyntax
from services.generation.requests.refusal import engine_errors
from services.generation.requests.tools import Tools
from services.runtime.errors import FailedPrecondition, InvalidArgument

_FIELD = "sampling.structured_outputs"


def read_structured_outputs(message: pb.StructuredOutputs) -> StructuredOutputs:
    """Raises InvalidArgument, FailedPrecondition (UNREPLAYABLE) where it names another library than this server's."""
    if message.engine not in ("", grammar_engine()):
        raise FailedPrecondition(
            f"{_FIELD}.engine: {grammar_engine()} decides here which tokens a grammar allows, not {message.engine}",
            reason="UNREPLAYABLE",
            metadata={"field": f"{_FIELD}.engine"},
        )
    match message.WhichOneof("constraint"):
        case "json":
            return StructuredOutputs("json", message.json)
        case "regex":
            return StructuredOutputs("regex", message.regex)
        case "choice":
            return StructuredOutputs("choice", canonical(list(message.choice.texts)).decode())
        case "grammar":
            return StructuredOutputs("grammar", message.grammar)
        case "json_object" if message.json_object:
            return StructuredOutputs("json_object")
    raise InvalidArgument(_FIELD, "expected one of json, regex, choice, grammar, and json_object, which is true")


def structured_outputs_message(source: StructuredOutputs) -> pb.StructuredOutputs:
    """The reverse, with the library named."""
    message = pb.StructuredOutputs(engine=grammar_engine())
    if source.kind == "choice":
        message.choice.texts.extend(json.loads(source.text))
    elif source.kind == "json_object":
        message.json_object = True
    else:
        setattr(message, source.kind, source.text)
    return message


async def calls_held(
    tools: Tools, text: StructuredOutputs | None, syntax: ToolCallSyntax, special: Mapping[str, int],
    grammars: GrammarCompiler,
) -> StructuredOutputs:  # fmt: skip
    """The constraint of an output that calls these tools, or is text that keeps to `text`.

    Raises InvalidArgument naming the tool, or the constraint, and the place in it.
    """
    await compiled(text, grammars)
    for path, schema in tools.schemas():  # each alone: errors name the place in it
        try:
            await grammars.compiled(StructuredOutputs("json", schema))
        except InvalidRequest as error:
            raise InvalidArgument(path, error.message) from error
    source = StructuredOutputs("grammar", tools.grammar(syntax, special, text))
    try:
        await grammars.compiled(source)
    except InvalidRequest as error:
        raise InvalidArgument("messages.tools", f"their grammar {error.message}") from error
    return source


async def compiled(source: StructuredOutputs | None, grammars: GrammarCompiler) -> Grammar | None:
    """Compiled on a thread, unless it is kept from before. Raises InvalidArgument naming the field and the place."""
    if source is None:
        return None
    with engine_errors("prompt"):
        return await grammars.compiled(source)
