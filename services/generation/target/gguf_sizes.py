"""The sizes of a GGUF file's model that others than its engine need, under the names of config.json."""

from __future__ import annotations

from services.generation.target.weights.gguf_metadata import GgufMetadata


def gguf_sizes(metadata: GgufMetadata) -> dict[str, int]:
    """hidden_size, num_hidden_layers and vocab_size. Base identifiers rest on these names: never add one.

    Raises ConfigInvalid where the file does not say.
    """
    family = metadata.text("general.architecture")
    return {
        "hidden_size": metadata.whole(f"{family}.embedding_length", least=1),
        "num_hidden_layers": metadata.whole(f"{family}.block_count", least=1),
        "vocab_size": _vocabulary(metadata, family),
    }


def _vocabulary(metadata: GgufMetadata, family: str) -> int:
    """Not every converter writes the size beside the tokens."""
    key = f"{family}.vocab_size"
    return metadata.whole(key, least=1) if key in metadata else len(metadata.texts("tokenizer.ggml.tokens"))
