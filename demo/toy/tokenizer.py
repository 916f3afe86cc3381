"""The base model's tokenizer: byte-level BPE, trained on a slice of every domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo.toy.corpus import chat, code, passages, tools
from demo.toy.corpus.dialogue import BOUNDARY, CHAT_TEMPLATE, END_OF_TURN, SPECIAL_TOKENS, render

VOCABULARY_SIZE = 4096
_DIALOGUES_PER_DOMAIN = 2500


def train(vocabulary_size: int = VOCABULARY_SIZE) -> PreTrainedTokenizerFast:
    """Train on the training split; the same library version and Python give the same merges."""
    tokenizer = Tokenizer(models.BPE())
    # Digits stay single, so that a number is copied digit by digit and never as a rare token of its own.
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(), trainer)
    return _as_transformers(tokenizer)


def load(folder: Path) -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return loaded


def _as_transformers(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """No post-processor: the chat template alone puts the boundary token, so it is never there twice."""
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOUNDARY,
        eos_token=END_OF_TURN,
        pad_token=BOUNDARY,
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in {BOUNDARY, END_OF_TURN}],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _sample() -> Iterator[str]:
    """All the code and some dialogues: about as much of each as the model will see."""
    yield from code.documents("train")
    for domain in (tools, passages, chat):
        yield from map(render, domain.documents("train", _DIALOGUES_PER_DOMAIN))
