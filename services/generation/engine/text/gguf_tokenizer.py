"""From a GGUF file's metadata to the tokenizer that the model was trained with, its special tokens and chat template.

transformers' own conversion takes GPT-2's split for every name that it does not know, among them SmolLM2's, and does
not keep whole words of Llama 3's vocabulary whole; so the tokenizer is put together here.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from services.generation.engine.text.byte_level import byte_level, splitting_of
from services.generation.engine.text.sentence_piece import gemma, sentence_piece
from services.generation.target.errors import ConfigInvalid, TargetError
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.gguf_metadata import GgufMetadata

_KINDS = {"gpt2": byte_level, "llama": sentence_piece, "gemma4": gemma}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens that stand for themselves in a text; the last are visible in output."""

_TEMPLATE = "tokenizer.chat_template"
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""Special tokens by GGUF's name, and transformers' name."""


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file.

    Raises:
        ConfigInvalid: the file describes none, or one of a kind that is not supported.
        TargetError: the file is not there or damaged.
    """
    metadata = GgufFile.open(path).metadata
    try:
        return _tokenizer(metadata)
    except TargetError:
        raise
    except Exception as error:  # the tokenizers library raises these for a vocabulary that contradicts itself
        raise ConfigInvalid(f"{path}: the tokenizer does not load: {error}") from error


def _tokenizer(metadata: GgufMetadata) -> PreTrainedTokenizerFast:
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise metadata.refused("tokenizer.ggml.model", f"one of {', '.join(_KINDS)}")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ConfigInvalid(f"{metadata.path}: tokenizer.ggml.tokens: a token is there twice; expected each once")
    tokenizer = _KINDS[kind](metadata, vocabulary)
    _add_tokens(tokenizer, tokens, metadata)
    roles = _roles(metadata, tokens)
    begins = metadata.truth("tokenizer.ggml.add_bos_token", kind != "gpt2" or splitting_of(metadata).begins)
    _surround(tokenizer, metadata, roles, begins=begins or kind == "gemma4")  # llama.cpp lets no file deny it there
    template = metadata.text(_TEMPLATE) if _TEMPLATE in metadata else None
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **roles)  # type: ignore[no-untyped-call]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], metadata: GgufMetadata) -> None:
    kinds = metadata.numbers("tokenizer.ggml.token_type").tolist()
    if len(kinds) != len(tokens):
        raise metadata.refused("tokenizer.ggml.token_type", f"one for each of {len(tokens)} tokens")
    for kind, special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [token for token, found in zip(tokens, kinds, strict=True) if found == kind]
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special) for token in chosen])


def _roles(metadata: GgufMetadata, tokens: list[str]) -> dict[str, str]:
    found = {}
    for role, name in _ROLES.items():
        index = metadata.whole(f"tokenizer.ggml.{role}_token_id", len(tokens))
        if index < len(tokens):
            found[f"{name}_token"] = tokens[index]
    return found


def _surround(tokenizer: Tokenizer, metadata: GgufMetadata, roles: dict[str, str], *, begins: bool) -> None:
    """Let `encode` put the special tokens around a text that the file asks for."""
    wanted = {
        "bos_token": begins,
        "eos_token": metadata.truth("tokenizer.ggml.add_eos_token", False),
    }
    begin, end = ([roles[role]] if wanted[role] and role in roles else [] for role in wanted)
    if begin or end:
        special = [(token, tokenizer.token_to_id(token)) for token in {*begin, *end}]
        tokenizer.post_processor = TemplateProcessing(single=[*begin, "$A", *end], special_tokens=special)
