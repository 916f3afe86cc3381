"""Constraints of every kind, over the tiny model's tokens."""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from services.generation.engine.request import Grammar, StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.text.grammar_compiler import GrammarCompiler
from tests.fakes.tiny_model import END, tiny_tokenizer

VOCAB = 384

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["drafter", "target", "ledger"]},
        "born": {"type": "string", "format": "date"},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "knows": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "born", "scores", "knows"],
    "additionalProperties": False,
}
CONSTRAINTS = (
    StructuredOutputs("json", json.dumps(PERSON)),
    StructuredOutputs("json_object"),
    StructuredOutputs("regex", r"(the|a) (ledger|drafter){1,3} [0-9]{2,4}(, signed)?"),
    StructuredOutputs("choice", json.dumps(["signed", "signed and sent", "söner", 'a "quoted"\nline'])),
    StructuredOutputs("grammar", 'start: sum\nsum: sum "+" NUMBER | NUMBER\nNUMBER: /[0-9]{1,3}/'),
    StructuredOutputs("grammar", 'root ::= "(" root ")" | "guess" | "decide and tell"'),
)


@cache
def compiler() -> GrammarCompiler:
    tokenizer = tiny_tokenizer(VOCAB)
    return GrammarCompiler(tokenizer.backend_tokenizer.to_str, VOCAB, (tokenizer.convert_tokens_to_ids(END),))


def grammar(source: StructuredOutputs) -> Grammar:
    return compiler().compile(source)


def encoded(text: str) -> list[int]:
    return list(tiny_tokenizer(VOCAB).backend_tokenizer.encode(text).ids)


def decoded(tokens: list[int]) -> str:
    return str(tiny_tokenizer(VOCAB).backend_tokenizer.decode(tokens))


def ids(mask: GrammarMask) -> list[int]:
    """The tokens that are allowed, ascending."""
    return np.flatnonzero(np.unpackbits(mask.allowed().view(np.uint8), bitorder="little")).tolist()
