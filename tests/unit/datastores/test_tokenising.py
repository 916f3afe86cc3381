"""The tokenizer of a build is the one that serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Encoding

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import read_documents
from services.datastores.tokenising import fast_tokenizer
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.errors import ConfigInvalid
from tests.fakes.datastores import (
    BASE,
    TOKENIZER,
    TOKENIZER_CID,
)


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.slow
def test_the_tokenizer_is_the_one_that_serves(tiny_model: Path) -> None:
    for directory in (tiny_model, BASE):
        assert fast_tokenizer(directory).to_str() == Tokenizer(directory).fast.to_str()


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "{"])
def test_a_directory_without_a_tokenizer_is_refused_by_name(model: Path, text: str | None) -> None:
    for path in model.glob("*token*"):
        path.unlink()
    if text is not None:
        (model / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigInvalid, match="the tokenizer does not load") as refused:
        fast_tokenizer(model)
    assert str(model) in str(refused.value)


class _Counting:
    """The demo's tokenizer for as much of each text as it takes to know one; remembers how much came at a time."""

    def __init__(self) -> None:
        self.most = 0

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        return int(TOKENIZER.get_vocab_size(with_added_tokens=with_added_tokens))

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.most = max(self.most, sum(len(text) for text in texts))
        return list(TOKENIZER.encode_batch_fast([text[:1000] for text in texts], add_special_tokens=False))


@pytest.mark.slow
@pytest.mark.parametrize("line", ["lorem ipsum dolor sit amet ", "x"])
def test_a_line_of_fifty_megabytes_is_tokenised_in_pieces(tmp_path: Path, line: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(line * (50_000_000 // len(line)))
    counting = _Counting()
    made = DatastoreBuilder(BASE, counting, TOKENIZER_CID, BuildParameters(shard_tokens=50_000))  # type: ignore[arg-type]
    manifest = made.build(read_documents([path], [path], lambda _: None), tmp_path / "store")
    assert manifest.documents == 1
    assert len(manifest.shards) > 1
    assert counting.most < 2_000_000
