"""Tiny tokenizers with the added tokens of real ones, and how their models call tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from llguidance import LLTokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from services.generation.engine.request import Grammar, StructuredOutputs
from services.generation.engine.text.grammar_compiler import matcher_of
from services.generation.engine.text.grammar_tokens import grammar_tokenizer
from services.generation.engine.text.markup import Markup
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax

VOCAB = 384


@dataclass(frozen=True)
class Family:
    """`special` and `plain`: added tokens with and without that flag. `pieces`: SentencePiece's vocabulary, which has a
    blank before a text; else bytes, composed (NFC) as Qwen's are. The first special token ends an output.
    """

    special: Sequence[str]
    plain: Sequence[str] = ()
    calls: ToolCallSyntax = PLAIN
    pieces: bool = False

    @property
    def end(self) -> int:
        return markup_of(self).ids[self.special[0]]

    def __hash__(self) -> int:
        return id(self)


_QWEN = ("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|object_ref_start|>", "<|vision_pad|>")
_CODE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
_CALL = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")
_RESPONSE = ("<tool_response>", "</tool_response>")

MISTRAL = ToolCallSyntax('[TOOL_CALLS][{"name": "', '", "arguments": ', '}, {"name": "', "}]")
DEEPSEEK = ToolCallSyntax(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
LLAMA = ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")
LFM = ToolCallSyntax(
    '<|tool_call_start|>[{"name": "', '", "arguments": ', '}, {"name": "', "}]<|tool_call_end|>"
)  # fmt: skip
GRANITE = ToolCallSyntax('<|tool_call|>[{"name": "', '", "arguments": ', '}, {"name": "', "}]")

FAMILIES = {
    "qwen2.5": Family(_QWEN, (*_CALL, *_CODE)),
    "qwen3": Family(_QWEN, (*_CALL, *_CODE, *_RESPONSE, *_THINK)),
    "hermes": Family(("<|im_end|>", "<|begin_of_text|>", "<|python_tag|>"), (*_CALL, "<tools>", "</tools>")),
    "smollm3": Family(("<|im_end|>", "<|im_start|>"), (*_THINK, *_CALL, *_RESPONSE)),
    "glm": Family(("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"), (*_THINK, *_CALL, *_RESPONSE, "<arg_key>")),
    "exaone": Family(("[|endofturn|]", "[BOS]"), (*_CALL, *_THINK, "<tool_result>")),
    "llama3": Family(("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|python_tag|>"), calls=LLAMA),
    "mistral": Family(("</s>", "<s>", "<unk>", "[INST]", "[/INST]", "[TOOL_CALLS]"), calls=MISTRAL, pieces=True),
    "deepseek": Family(
        ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
        (
            "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", *_THINK,
        ),
        calls=DEEPSEEK,
    ),
    "gemma": Family(
        ("<eos>", "<bos>", "<unk>", "<end_of_turn>", "<start_of_turn>"),
        ("<table>", "</h1>", "\n\n", "<unused5>", "[multimodal]"),
        pieces=True,
    ),
    "lfm2": Family(("<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>"), calls=LFM),
    "granite": Family(("<|end_of_text|>", "<|start_of_role|>", "<|tool_call|>"), ("<file_sep>",), calls=GRANITE),
    "gpt-oss": Family(("<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>")),
}  # fmt: skip
"""By the families of docs/serving.md whose tokenizers have markup of their own kind."""


@cache
def tokenizer_of(family: Family) -> FastTokenizer:
    """At most `VOCAB` tokens."""
    fast = _pieces() if family.pieces else _bytes()
    fast.add_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.plain])
    assert fast.get_vocab_size() <= VOCAB
    return fast


@cache
def markup_of(family: Family) -> Markup:
    return Markup(tokenizer_of(family))


@cache
def library_of(family: Family) -> LLTokenizer:
    return grammar_tokenizer(tokenizer_of(family).to_str(), VOCAB, family.end)


def marked_grammar(family: Family, source: StructuredOutputs) -> Grammar:
    """Compiled here and not tried out before. Raises InvalidRequest."""
    return Grammar(source, family.end, VOCAB, partial(matcher_of, library_of(family), source))


def opening_of(family: Family) -> tuple[int, ...]:
    """The tokens with which the model begins a call."""
    marks = markup_of(family).ids
    mark = next((index for text, index in marks.items() if family.calls.open.startswith(text)), None)
    return tuple(library_of(family).tokenize_str(family.calls.open)) if mark is None else (mark,)


def _bytes() -> FastTokenizer:
    grown = [("t", "o"), ("o", "l"), ("to", "ol"), ("<", "|"), ("|", ">"), ("c", "a"), ("l", "l"), ("ca", "ll")]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in grown)]
    fast = FastTokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, grown))
    fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return fast


def _pieces() -> FastTokenizer:
    """Letters of the markup and merges of some, so that one of them comes out of plain text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"</s>TOLCA[]"]
    grown = [("<", "/"), ("s", ">"), ("</", "s>"), ("T", "O"), ("O", "L"), ("\u2581", "T")]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*tokens, *map("".join, grown)]))}
    fast = FastTokenizer(models.BPE(vocabulary, grown, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    return fast
