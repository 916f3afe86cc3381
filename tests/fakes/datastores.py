"""Small datastores of the bundled base."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.target.identity import tokenizer_cid
from tests.fakes.tiny_model import make_tiny_model
from tests.workers import OWN_FOLDER


@cache
def base() -> Path:
    """A tiny model, made by the first test of this process that asks for it."""
    return make_tiny_model(Path(os.environ[OWN_FOLDER]) / "base")


@cache
def tokenizer() -> FastTokenizer:
    return FastTokenizer.from_file(str(base() / "tokenizer.json"))


def builder(parameters: BuildParameters | None = None) -> DatastoreBuilder:
    return DatastoreBuilder(base(), tokenizer(), tokenizer_cid(base()), parameters or BuildParameters())


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document(f"document {number}", text) for number, text in enumerate(texts)]


def store_of(texts: Iterable[str], folder: Path, parameters: BuildParameters | None = None) -> Datastore:
    builder(parameters).build(documents(texts), folder)
    return opened(folder)


def opened(folder: Path) -> Datastore:
    return Datastore.open(folder, base(), tokenizer_cid(base()))


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)
