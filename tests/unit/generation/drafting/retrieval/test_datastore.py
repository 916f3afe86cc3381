"""Datastores: suffix arrays in shards, continuations by the longest context; what is damaged is refused."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.datastores.builder import BuildParameters, sorted_suffixes
from services.generation.drafting.acceptance import RequestAcceptance
from services.generation.drafting.draft_tree.candidates import sampling_of
from services.generation.drafting.draft_tree.nodes import NODE, NONE, Bounds
from services.generation.drafting.retrieval.backoff import Suffixes, expand, range_of
from services.generation.drafting.retrieval.datastore import Datastore, Shard
from services.generation.drafting.retrieval.manifest import Blob, Manifest, StoreInvalid, StoreMismatch, token_dtype
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.race import gumbel
from services.generation.target.arrays import Int64
from tests.examples import examples
from tests.fakes.datastores import base, encode, opened, store_of, tokenizer

TEXTS = [
    "The harbour opens at six and closes at nine.",
    "",
    "def read_lines(path):\n    with open(path) as file:\n        return file.readlines()\n",
    "The harbour opens at six and closes at noon on Sundays. Fish is sold on the pier.",
    "The harbour opens at six and closes at nine.",
]


@pytest.mark.slow
def test_shards_change_nothing_but_the_files(tmp_path: Path) -> None:
    whole = store_of(TEXTS * 3, tmp_path / "whole")
    cut = store_of(TEXTS * 3, tmp_path / "cut", BuildParameters(shard_tokens=40, passage_tokens=8))
    assert len(cut.manifest.shards) > 3
    pattern = np.array(encode(" closes at"))
    assert followers(cut, pattern) == followers(whole, pattern) != []


def followers(store: Datastore, pattern: Int64) -> list[int]:
    """The tokens after a pattern, of all its occurrences."""
    found = []
    for shard in store.shards:
        first, last = range_of(*shard.arrays[:3], pattern)
        found += shard.tokens[shard.suffixes[first:last] + len(pattern)].tolist()
    return sorted(found)


def test_the_passages_nearest_to_a_text_are_those_with_its_words(tmp_path: Path) -> None:
    store = store_of(TEXTS, tmp_path / "store", BuildParameters(passage_tokens=16))
    (near,) = store.nearest_passages(np.array(encode("Fish is sold on the pier on Sundays")), 1).tolist()
    passage = tokenizer().decode(store.passage(near).tolist())
    assert "Fish" in passage or "Sundays" in passage


def test_the_same_corpus_gives_the_same_name(tmp_path: Path) -> None:
    one, two = (store_of(TEXTS, tmp_path / name).manifest for name in ("one", "two"))
    assert one.cid == two.cid
    assert store_of(TEXTS[:-1], tmp_path / "other").manifest.cid != one.cid
    assert Manifest.read(tmp_path / "one") == one


def test_another_tokenizers_store_is_refused(tmp_path: Path) -> None:
    store_of(TEXTS, tmp_path / "store")
    with pytest.raises(StoreMismatch):
        Datastore.open(tmp_path / "store", base(), "cidv1:sha256:" + "0" * 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tokens-00000.npy", "suffixes-00000.npy", "passages.npy", "passages.faiss", "weights.npy"]
)
@pytest.mark.parametrize("damage", ["cut", "absent", "changed"])
def test_a_damaged_store_is_refused_by_the_files_name(tmp_path: Path, name: str, damage: str) -> None:
    store_of(TEXTS, tmp_path / "store")
    path = tmp_path / "store" / name
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreInvalid, match=name):
        opened(tmp_path / "store").verify()


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.update(type="other"),
        lambda m: m.pop("shards"),
        lambda m: m["index"].update(path="../x"),
        lambda m: m["weights"].update(size=-1),
        lambda m: m.update(tokens="many"),
        lambda m: m.update(shards=[[]]),
        lambda m: m.update(vocab_size=2**50),  # before anything is made of that size
    ],
)
def test_a_changed_manifest_is_refused(tmp_path: Path, edit: object) -> None:
    store_of(TEXTS, tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)  # type: ignore[operator]
    path.write_text(json.dumps(document))
    with pytest.raises(StoreInvalid):
        opened(tmp_path / "store")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("suffixes-00000.npy", 3, 2**31 - 1),
        ("suffixes-00000.npy", 3, -1),
        ("passages.npy", (0, 0), 1),
        ("passages.npy", (0, 0), -1),
        ("passages.npy", (0, 1), -1),
        ("passages.npy", (0, 2), -1),
        ("passages.npy", (0, 2), 2**63 - 1),
    ],
)
def test_a_store_that_points_outside_of_itself_is_refused_whatever_its_manifest_has(
    tmp_path: Path, name: str, place: int | tuple[int, int], value: int
) -> None:
    folder = tmp_path / "store"
    store_of(TEXTS, folder).verify()
    array, before, manifest = np.load(folder / name), Blob.of(folder, name).digest, folder / "manifest.json"
    array[place] = value
    np.save(folder / name, array)
    manifest.write_text(manifest.read_text().replace(before, Blob.of(folder, name).digest))
    with pytest.raises(StoreInvalid, match=name):
        opened(folder).verify()


SMALL = 5  # tokens in a vocabulary where everything repeats
LARGE = 70_000  # more than 16 bits hold


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Documents of 0, 1 and more tokens, some of them twice, token id 0 among them; and the vocabulary's size."""
    vocabulary = draw(st.sampled_from([SMALL, LARGE]))
    token = (
        st.integers(0, SMALL - 1) if vocabulary == SMALL else st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 69_999])
    )
    documents = draw(st.lists(st.lists(token, max_size=30), min_size=1, max_size=6))
    return documents + draw(st.lists(st.sampled_from(documents), max_size=2)), vocabulary


def build(documents: list[list[int]], vocabulary: int) -> Shard:
    flat = [token for document in documents for token in (*document, vocabulary)]
    tokens = np.array(flat, token_dtype(vocabulary))
    return Shard(tokens, np.concatenate(list(sorted_suffixes(tokens))), vocabulary)


def found_in(shard: Shard, pattern: list[int]) -> list[int]:
    first, last = range_of(*shard.arrays[:3], np.array(pattern, np.int64))
    return [int(at) for at in shard.suffixes[first:last]]


def occurrences(documents: list[list[int]], pattern: list[int]) -> list[int]:
    """Positions at which a pattern begins in the documents laid out with one separator after each."""
    found, start = [], 0
    for document in documents:
        last = len(document) - len(pattern)
        found += [start + at for at in range(last + 1) if document[at : at + len(pattern)] == pattern]
        start += len(document) + 1
    return found


@pytest.mark.slow
@given(corpora(), st.data())
def test_occurrences_are_those_of_a_search_that_reads_everything(
    corpus: tuple[list[list[int]], int], data: st.DataObject
) -> None:
    documents, vocabulary = corpus
    shard = build(documents, vocabulary)
    document = data.draw(st.sampled_from(documents))
    begin = data.draw(st.integers(0, len(document)))
    pattern = document[begin : begin + data.draw(st.integers(1, 8))] or [data.draw(st.integers(0, SMALL - 1))]
    assert sorted(found_in(shard, pattern)) == occurrences(documents, pattern)


def test_a_mapped_shard_finds_what_it_found_before(tmp_path: Path) -> None:
    shard = build([[3, 1, 4, 1, 5], [9, 2, 6]], SMALL * 10)
    np.save(tmp_path / "tokens.npy", shard.tokens)
    np.save(tmp_path / "suffixes.npy", shard.suffixes)
    again = Shard.open(tmp_path / "tokens.npy", tmp_path / "suffixes.npy", SMALL * 10)
    assert isinstance(again.tokens.base, np.memmap)
    assert found_in(again, [1]) == found_in(shard, [1]) != []


@pytest.mark.parametrize("damage", ["cut", "shorter", "pickle", "absent"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    shard = build([[3, 1, 4]], 50)
    tokens, suffixes = tmp_path / "tokens.npy", tmp_path / "suffixes.npy"
    np.save(tokens, shard.tokens)
    np.save(suffixes, shard.suffixes)
    if damage == "cut":
        suffixes.write_bytes(suffixes.read_bytes()[:-3])
    elif damage == "shorter":
        np.save(suffixes, shard.suffixes[:-1])
    elif damage == "pickle":
        np.save(suffixes, np.array([object()]), allow_pickle=True)
    else:
        suffixes.unlink()
    with pytest.raises(StoreInvalid, match=r"suffixes\.npy"):
        Shard.open(tokens, suffixes, 50)


VOCABULARY = 40


def shard_of(*documents: list[int]) -> Suffixes:
    tokens = np.array([token for document in documents for token in (*document, VOCABULARY)], np.uint16)
    suffixes = np.array(sorted(range(len(tokens)), key=lambda at: tokens[at:].tolist()), np.int32)
    return Suffixes(tokens, suffixes, np.full(VOCABULARY + 2, -1, np.int64), VOCABULARY)


def drafted(shard: Suffixes, end: list[int], *, depth: int = 1, least: float = 0.0, **sampling: float) -> np.ndarray:
    """The nodes below the root."""
    nodes = np.empty(400, NODE)
    nodes[0] = (end[-1], -1, 0, NONE, 0, 0, NONE, NONE, 0, 1.0, 1.0)
    request = EngineRequest("", (0,), SamplingParams(**sampling))  # type: ignore[arg-type]
    how = sampling_of(request)
    how["position"] = len(end)
    rates = RequestAcceptance().rates()
    return nodes[1 : expand(nodes, 1, shard, np.array(end, np.int64), how, Bounds(400, depth, least), rates)]


@pytest.mark.slow
@given(
    document=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    end=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
@settings(max_examples=examples(60), deadline=None)
def test_each_token_that_followed_is_drafted_once_those_of_the_longest_end_first(
    document: list[int], end: list[int]
) -> None:
    def following(length: int) -> Counter[int]:
        places = (at for at in range(length, len(document)) if document[at - length : at] == end[len(end) - length :])
        return Counter(document[at] for at in places)

    def occurs(length: int) -> bool:
        return any(document[at : at + length] == end[len(end) - length :] for at in range(len(document) - length + 1))

    expected: list[set[int]] = []
    longest = max((length for length in range(len(end) + 1) if occurs(length)), default=0)
    for length in [longest, *range(min(3, longest - 1), 0, -1)] if longest else []:
        known = set().union(*expected)
        expected += [group for group in [set(following(length)) - known] if group]
    tokens = drafted(shard_of(document), end)["token"].tolist()
    for group in expected:
        assert set(tokens[: len(group)]) == group
        tokens = tokens[len(group) :]
    assert tokens == []


@pytest.mark.parametrize("end", [[VOCABULARY + 3, 1], [1, VOCABULARY + 3, 1]])
def test_ids_beyond_the_tokenizers_are_no_context(end: list[int]) -> None:
    shard = shard_of([1, 2], [VOCABULARY - 1, 1, 3])
    assert set(drafted(shard, end)["token"].tolist()) == {2, 3}
    assert len(drafted(shard, [1, VOCABULARY + 3])) == 0


def test_above_temperature_0_the_samplers_noise_says_which_comes_first() -> None:
    shard, firsts = shard_of([1, 2], [1, 3], [1, 4], [1, 5]), set()
    for seed in range(20):
        first = drafted(shard, [9, 1], temperature=1.0, seed=seed)["token"][0]
        assert first == max((2, 3, 4, 5), key=lambda token: gumbel(np.uint64(seed), 0, 2, token))
        firsts.add(int(first))
    assert firsts == {2, 3, 4, 5}
    assert len(drafted(shard, [9, 8], temperature=1.0)) == 0
