"""Grammars and chat templates with tools."""

import json
from functools import cache

import numpy as np

from services.generation.engine.request import Grammar, StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.text.grammar_compiler import GrammarCompiler
from tests.fakes.tiny_model import END, SPECIAL_TOKENS, tiny_tokenizer

VOCAB = 384
END_ID = SPECIAL_TOKENS.index(END)

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
SLOW = json.dumps({"anyOf": [{"multipleOf": 99_991 - n} for n in range(16)]})
"""A schema that takes longer to compile than a server allows, on any machine."""


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


HERMES = (
    "{% if tools %}<|user|>{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|user|><tool_response>\n{{ message.content }}\n</tool_response><|end|>"
    "{% else %}{{ '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '\n' if message.content or not loop.first }}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>"
    "{% endfor %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

LLAMA = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'user' and tools %}{{ tools | tojson }}{% endif %}"
    "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
    "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

MISTRAL = (
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ message.content }}[/INST]"
    "{% elif message.tool_calls %}<|pad|>[{% for call in message.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    '{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{{ \', \' if not loop.last }}'
    "{% endfor %}]<|end|>{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
)

XML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% if tools %}tools{% endif %}"
    "{% for call in message.tool_calls or [] %}<function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments.items() %}<{{ name }}>{{ value }}</{{ name }}>{% endfor %}"
    "</function>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Arguments are no JSON."""
