"""The models that a process has at hand to embed with, and the embedder that a datastore needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as FastTokenizer

from services.generation.drafting.retrieval.datastore_error import StoreMismatch
from services.generation.drafting.retrieval.embedders.embedder import BASE, SENTENCES, Embedder, Embedding, Float32
from services.generation.drafting.retrieval.embedders.input_layer import InputLayer
from services.generation.drafting.retrieval.embedders.sentence_model import SentenceEmbedder, SentenceModel
from services.generation.target.folders.identity import base_cid

if TYPE_CHECKING:
    from services.generation.target.target import Target


@dataclass(frozen=True, slots=True)
class Models:
    """A base by its directory; the same base, loaded, for layers above its input; and a sentence-transformers model
    with the base's tokenizer, which decodes its input.
    """

    base: Path
    target: Target | None = None
    sentences: SentenceModel | None = None
    tokenizer: FastTokenizer | None = None

    def embedding(self, layer: int) -> Embedding:
        """That of a datastore built now: the sentence-transformers model's where there is one, else the base's."""
        if self.sentences is not None:
            return Embedding(SENTENCES, self.sentences.cid, None)
        return Embedding(BASE, self._base_cid(), layer)

    def embedder(self, embedding: Embedding, weights: Float32, window: int) -> Embedder:
        """The embedder of `embedding`. `weights` [vocab] are those of tokens, `window` is a passage's length in tokens.

        Raises StoreMismatch where these models have another embedding.
        """
        if embedding.kind == SENTENCES:
            if self.sentences is None or self.tokenizer is None:
                raise StoreMismatch(f"embedding: made by the {embedding}; name its directory with --embedder")
            if embedding.cid != self.sentences.cid:
                raise StoreMismatch(
                    f"embedding: made by the {embedding}, --embedder is {self.sentences.cid}; expected the same model"
                )
            return SentenceEmbedder(embedding, self.sentences, self.tokenizer, window)
        if embedding.cid != (found := self._base_cid()):
            raise StoreMismatch(f"embedding: made by {embedding}, the base is {found}; build it again with this base")
        if embedding.layer == 0:
            return InputLayer.of_base(embedding, self.base, weights)
        if self.target is None or (embedding.layer or 0) > self.target.config.layers:
            layers = "is not loaded" if self.target is None else f"has {self.target.config.layers} layers"
            raise StoreMismatch(f"embedding: needs {embedding}, which {layers}")
        from services.generation.drafting.retrieval.embedders.hidden_states import (
            HiddenStates,  # brings the engine, which others spare
        )

        return HiddenStates(embedding, self.target, weights, window)

    def _base_cid(self) -> str:
        return self.target.base_cid if self.target is not None else base_cid(self.base)
