"""Small datastores of the bundled base."""

import atexit
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.target.identity import tokenizer_cid
from tests.fakes.tiny_model import make_tiny_model

_FOLDER = Path(tempfile.mkdtemp(prefix="kolm-test-base-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
BASE = make_tiny_model(_FOLDER / "base")
TOKENIZER = FastTokenizer.from_file(str(BASE / "tokenizer.json"))
TOKENIZER_CID = tokenizer_cid(BASE)


def builder(parameters: BuildParameters | None = None) -> DatastoreBuilder:
    return DatastoreBuilder(BASE, TOKENIZER, TOKENIZER_CID, parameters or BuildParameters())


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document(f"document {number}", text) for number, text in enumerate(texts)]


def store_of(texts: Iterable[str], folder: Path, parameters: BuildParameters | None = None) -> Datastore:
    builder(parameters).build(documents(texts), folder)
    return Datastore.open(folder, BASE, TOKENIZER_CID)


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)
