"""Builds that fail in processes of their own, of which none imports torch."""

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from services.datastores.builder import BuildFailed, BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.target.identity import tokenizer_cid


def _builder(base: Path, **parameters: int) -> DatastoreBuilder:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    return DatastoreBuilder(base, tokenizer, tokenizer_cid(base), BuildParameters(**parameters))


def build_killed(base: Path, folder: Path) -> None:
    def slow() -> Iterator[Document]:
        yield Document("one", "words and more words " * 20_000)
        os.kill(os.getpid(), signal.SIGKILL)

    _builder(base, shard_tokens=1000).build(slow(), folder)


def build_without_room(base: Path, folder: Path, room: int, passage_tokens: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    made = _builder(base, passage_tokens=passage_tokens)
    try:
        made.build([Document("one", "words and more words " * 20_000)], folder)
    except BuildFailed as error:
        os._exit(0 if str(folder) in str(error) and "nothing was kept" in str(error) else 2)
