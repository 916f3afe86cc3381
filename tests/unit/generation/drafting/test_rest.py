"""REST: retrieved drafts save passes if text was seen before, step aside if it was not, and change no token."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.drafting import rest
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget
from tests.fakes.drafters import budget as budget_of
from tests.fakes.engine_runs import run
from tests.unit.generation.engine.test_identity import alone, battery, check_unchanged, parameters

BOLD = budget_of(nodes=64, depth=16, breakeven=0.001)
DEAR = budget_of(nodes=64, depth=16, breakeven=0.95)
CID = "cidv1:sha256:" + "1" * 64


def store_of(tokens: list[list[int]], base: Path, folder: Path) -> Datastore:
    """A datastore whose documents are lists of token ids of the tiny model."""
    tokenizer = FastTokenizer(models.WordLevel({str(token): token for token in range(384)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    documents = [Document("d", " ".join(map(str, document))) for document in tokens]
    builder = DatastoreBuilder(base, tokenizer, CID, BuildParameters(passage_tokens=8))
    builder.build(documents, folder)
    return Datastore.open(folder, base, CID)


def request(prompt: list[int], tenant: str | None = None, **sampling: object) -> EngineRequest:
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return EngineRequest("r", tuple(prompt), params, method="rest", tenant=tenant)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@battery
def test_no_store_changes_a_token(target: CpuTarget, model: Path, seed: int, tmp_path_factory: object) -> None:
    rng = random.Random(seed)
    requests, expected = [], {}
    for number in range(rng.randrange(1, 4)):
        prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 3, 40, 65))))
        method = rng.choice(("rest", "rest", "lookahead", "off"))
        asked = EngineRequest(f"r{number}", prompt, parameters(rng), choice=number, method=method)
        requests.append(asked)
        expected[asked.key] = alone(target, asked)
    # The requests' outputs, cut and changed here and there: drafts that are right for a while.
    known = [[*r.prompt[-4:], *expected[r.key][0]] for r in requests]
    for document in known:
        if document and rng.random() < 0.5:
            document[rng.randrange(len(document))] = rng.randrange(384)
    store = store_of([d for d in known if d] or [[1]], model, tmp_path_factory.mktemp("rest") / "store")  # type: ignore[attr-defined]
    drafters = {"rest": RestDrafter({None: [store]}), "lookahead": LookaheadDrafter()}
    check_unchanged(target, requests, expected, drafters, rng)


def test_text_that_is_in_the_store_takes_few_passes(target: CpuTarget, model: Path, tmp_path: Path) -> None:
    asked = request([5, 9, 300, 17])
    answer = alone(target, asked)[0]
    store = store_of([[5, 9, 300, 17, *answer]], model, tmp_path / "store")
    collected = run(target, [asked], drafters={"rest": RestDrafter({None: [store]})})
    outcome = collected.outcomes[asked.key]
    assert outcome.token_ids == answer
    assert outcome.metrics.target_passes < 20


def test_without_a_match_it_steps_aside(model: Path, tmp_path: Path) -> None:
    store = store_of([[1, 2, 3, 4]], model, tmp_path / "store")
    draft = RestDrafter({None: [store]}).begin(request([7]))
    assert len(draft.propose([7, 8, 9], BOLD)) == 1
    assert len(draft.propose([7, 8, 9, 1, 2], BOLD)) > 1


def test_where_rows_are_dear_it_drafts_only_what_has_proved_right(model: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    text = [rng.randrange(384) for _ in range(300)]
    store = store_of([text], model, tmp_path / "store")
    drafter = RestDrafter({None: [store]})
    draft = drafter.begin(request(text[:4]))
    assert len(draft.propose(text[:4], DEAR)) == 1
    for length in range(5, 280):
        tree = draft.propose(text[:length], budget_of(64, 16, 0.6))
        draft.observe(text[: length + 1], tree, [0], np.zeros((1, 384), np.float32))
    assert len(draft.propose(text[:280], budget_of(64, 16, 0.6))) > 4


def test_a_request_draws_on_its_own_tenants_store_and_on_the_shared_one_alone(model: Path, tmp_path: Path) -> None:
    stores = {
        tenant: [store_of([[1, 2, 3, own]], model, tmp_path / str(tenant))]
        for tenant, own in (("a", 10), ("b", 20), (None, 30))
    }
    drafter = RestDrafter(stores)
    for tenant, expected in (("a", {10, 30}), ("b", {20, 30}), ("c", {30}), (None, {30})):
        tree = drafter.begin(request([0], tenant)).propose([0, 1, 2, 3], BOLD)
        assert set(tree.tokens[1:]) == expected


class _Untouchable:
    """Another tenant's store: any use of it fails."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} of another tenant's store")


@pytest.mark.parametrize("tenant", ["a", "A", "b ", "bb", "", "None", "*", "b=/x", "../b", "c", None])
def test_nothing_that_a_request_calls_itself_touches_another_tenants_store(
    model: Path, tmp_path: Path, tenant: str | None
) -> None:
    own = store_of([[1, 2, 3, 10], [1, 2, 11]], model, tmp_path / "a")
    shared = store_of([[1, 2, 3, 30]], model, tmp_path / "shared")
    retrieving = RestDrafter({"a": [own], "b": [_Untouchable()], None: [shared]})  # type: ignore[list-item]
    asked = request([0, 1, 2, 3], tenant)
    allowed = {10, 11, 30} if tenant == "a" else {30}
    tokens = [0, *([1, 2, 3] * 100)]  # long enough for its topic to be looked up again
    drafted: set[int] = set()
    draft = retrieving.begin(asked)
    for length in (4, len(tokens)):
        drafted |= set(draft.propose(tokens[:length], BOLD).tokens[1:])
    assert drafted <= allowed | {1, 2, 3}
    assert 30 in drafted


def test_own_text_and_near_passages_are_drafted_beside_what_is_more_frequent(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [[1, 2, 40]] * 5
    near = [[7, 8, 9, 1, 2, 50]]
    store = store_of([*far, *near], model, tmp_path / "store")
    drafter, tokens = RestDrafter({None: [store]}), [1, 2, 60, 7, 8, 9, 1, 2]
    tree = drafter.begin(request([0])).propose(tokens[:3] + tokens[-2:], BOLD)
    assert {60, 40} <= set(tree.tokens)
    monkeypatch.setattr(rest, "_NEAREST", 1)
    _, first, *_ = drafter.begin(request([0])).propose(tokens[3:], BOLD).tokens
    assert first == 50  # a match of five tokens in the passage that is nearest, while five others have 40
