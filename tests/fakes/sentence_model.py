"""A sentence-transformers directory with random weights: a BERT of one layer, mean pooling, normalisation."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
]
_MODULES = ("Transformer", "Pooling", "Normalize")


def make_sentence_model(directory: Path, *, hidden: int = 32, seed: int = 0) -> Path:
    """Write what `SentenceTransformer(directory)` loads; returns `directory`. The same arguments, the same bytes."""
    directory.mkdir(parents=True)
    (directory / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab=str(directory / "vocab.txt"), do_lower_case=True).save_pretrained(directory)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=hidden, max_position_embeddings=128,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(directory)
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(_MODULES)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": True}))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "2_Normalize").mkdir()
    return directory
