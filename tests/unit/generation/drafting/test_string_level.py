"""A draft model with another tokenizer: its words in the target's tokens, fewer passes, and no other token."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.generation.drafting import string_level
from services.generation.drafting.string_level import Retokenized, StringLevelDrafter
from services.generation.engine.cost import StepCost
from services.generation.engine.drafter import DraftRequest
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.model_path import model_path
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from tests.fakes.drafters import budget as budget_of
from tests.fakes.engine_runs import run
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.generation.engine.test_identity import alone, check_unchanged, parameters, short_battery, signature

BOLD = budget_of(nodes=64, depth=8, breakeven=0.001)
STEP = StepCost(fixed=0.01, row=0.0001)
TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=0x24F), max_size=300),
    st.lists(
        st.sampled_from(("the ", "ledger", " keeps", "\n\n", "  ", "décidé", "漢字", "🙂", "x" * 90)), max_size=60
    ).map("".join),
)


@pytest.fixture(scope="module")
def tokenizers(model: Path) -> list[Tokenizer]:
    return [Tokenizer(model), Tokenizer(model_path("smollm2"))]


@given(text=TEXTS, seed=st.integers(0, 2**32), to=st.integers(0, 1))
@short_battery
def test_a_text_that_grows_is_the_same_text_in_other_ids(
    tokenizers: list[Tokenizer], text: str, seed: int, to: int
) -> None:
    rng, source, into = random.Random(seed), tokenizers[1 - to], tokenizers[to]
    tokens, retokenized, settled = source.encode_output(text), Retokenized(source, into), list[int]()
    assume(all(each.decode_all(each.encode_output(text)) == text for each in tokenizers))  # some lack bytes
    cuts = sorted({rng.randrange(len(tokens) + 1) for _ in range(rng.randrange(8))} | {len(tokens)})
    for cut in cuts:
        retokenized.follow(tokens[:cut])
        assert retokenized.ids[: len(settled)] == settled
        settled = retokenized.ids[: retokenized.settled]
    assert into.decode_all(retokenized.ids) == text


def test_long_texts_are_settled_but_for_their_end(tokenizers: list[Tokenizer]) -> None:
    source, into = tokenizers
    texts = [source.encode_output(text) for text in ("every receipt is signed " * 40, "漢字" * 100, "\ufffd" * 100)]
    for tokens in (*texts, 200 * source.encode_output("漢")[-1:]):  # the last one is not UTF-8
        retokenized = Retokenized(source, into)
        retokenized.follow(tokens)
        assert len(tokens) - retokenized._read <= 64
        assert 0 < len(retokenized.ids) - retokenized.settled < 64


def test_special_tokens_that_both_have_are_kept_and_others_left_out(
    tokenizers: list[Tokenizer], tmp_path: Path
) -> None:
    tiny, public = tokenizers
    there, other = (
        Retokenized(tiny, public),
        Retokenized(tiny, Tokenizer(make_tiny_model(tmp_path, vocab=300, layers=1))),
    )
    tokens = [tiny.markup["<|user|>"], *tiny.encode_output("hello"), tiny.markup["<|end|>"]]
    there.follow(tokens)
    other.follow(tokens)
    assert public.decode_all(there.ids) == "hello"
    assert other._into.decode_all(other.ids) == "<|user|>hello<|end|>"
    assert other.ids[-1] == other._into.markup["<|end|>"]


@pytest.mark.parametrize("to", [0, 1])
def test_what_a_model_goes_on_with_becomes_tokens_of_the_target(tokenizers: list[Tokenizer], to: int) -> None:
    source, into = tokenizers[1 - to], tokenizers[to]
    text = "The drafter guesses; the target decides. Tokens that it would not have chosen are never sent."
    tokens, ids = source.encode_output(text), into.encode_output(text)
    for cut in range(len(tokens)):
        start = source.decode_all(tokens[:cut])
        place = next(n for n in range(len(ids) + 1) if len(into.decode_all(ids[:n])) >= len(start))
        if into.decode_all(ids[:place]) == start:
            retokenized = Retokenized(source, into)
            retokenized.follow(tokens[:cut])
            assert retokenized.continuation(ids[place:]) == tokens[cut:]


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes ASCII letter by letter, so that its text has one spelling."""
    folder = make_tiny_model(tmp_path_factory.mktemp("spelling"), vocab=260)
    weights, tokenizer = load_file(folder / "model.safetensors"), Tokenizer(folder)
    plain = torch.tensor(
        [
            text.isascii() and text.isprintable() and len(text) == 1
            for text in map(tokenizer.decode_all, ([n] for n in range(260)))
        ]
    )
    for name, each in weights.items():  # the first element of the residual is the same everywhere
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            each[0] = 0.0
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    weights["lm_head.weight"][:, 0] = torch.where(plain, 0.0, -100.0)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def spelling_target(spelling: Path) -> CpuTarget:
    return load_target(spelling, cache_tokens=40 * 64)


@pytest.fixture(scope="module")
def renumbered(spelling: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CpuTarget]:
    """The same model with other ids for the same tokens."""
    folder, rng = tmp_path_factory.mktemp("renumbered"), np.random.default_rng(3)
    order = rng.permutation(260)  # new id by old id
    for file in spelling.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][torch.tensor(np.argsort(order))].contiguous()
    save_file(weights, folder / "model.safetensors")
    known = json.loads((folder / "tokenizer.json").read_text())
    known["model"]["vocab"] = {text: int(order[old]) for text, old in known["model"]["vocab"].items()}
    for token in known["added_tokens"]:
        token["id"] = int(order[token["id"]])
    (folder / "tokenizer.json").write_text(json.dumps(known))
    for name in ("config.json", "generation_config.json"):
        members = json.loads((folder / name).read_text())
        members |= {
            key: int(order[members[key]]) for key in ("eos_token_id", "pad_token_id") if members.get(key) is not None
        }
        (folder / name).write_text(json.dumps(members))
    return folder, load_target(folder, cache_tokens=40 * 64)


def drafter_of(target: CpuTarget, base: Path, model: CpuTarget, own: Path, step: StepCost = STEP) -> StringLevelDrafter:
    ends = sorted(target.config.eos_token_ids)
    return StringLevelDrafter(model, Tokenizer(base), Tokenizer(own), ends, step)


def test_a_model_of_the_same_mind_is_right_whatever_its_ids(
    spelling_target: CpuTarget, spelling: Path, renumbered: tuple[Path, CpuTarget], caplog: pytest.LogCaptureFixture
) -> None:
    target, (own, model) = spelling_target, renumbered
    assert target.tokenizer_cid != model.tokenizer_cid
    sampling = SamplingParams(max_tokens=60)
    prompts = ["every receipt", "x", "A drafter guesses; " * 15]
    tokenizer = Tokenizer(spelling)
    requests = [
        EngineRequest(f"r{n}", tuple(tokenizer.encode(prompt)), sampling, method="draft", k=4)
        for n, prompt in enumerate(prompts)
    ]
    collected = run(target, requests, drafters={"draft": drafter_of(target, spelling, model, own)})
    for request in requests:
        metrics = collected.outcomes[request.key].metrics
        assert signature(collected, request) == alone(target, request)
        assert metrics.num_accepted_tokens == metrics.num_draft_tokens
        assert metrics.target_passes <= 18
    assert model.blocks.used == 0
    assert not caplog.records


def test_passes_of_such_a_model_teach_what_they_take(
    spelling_target: CpuTarget, spelling: Path, renumbered: tuple[Path, CpuTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, model = renumbered
    drafter, forward, now = drafter_of(spelling_target, spelling, model, own), model.forward, [0.0]

    def slow(rows: Rows) -> PassOutput:
        now[0] += 3.0 * (STEP.fixed + len(rows) * STEP.row)
        return forward(rows)

    monkeypatch.setattr(model, "forward", slow)
    monkeypatch.setattr(string_level, "perf_counter", lambda: now[0])
    tokens = Tokenizer(spelling).encode("every receipt")
    for _ in range(100):
        draft = drafter.begin(EngineRequest("r", (1,), SamplingParams()))
        drafter.propose([DraftRequest(draft, tokens, BOLD)])
        draft.release()
    assert drafter.cost.pace.step == pytest.approx(3.0, rel=0.05)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_what_is_kept_of_the_cache_is_that_of_the_text(
    spelling_target: CpuTarget, spelling: Path, renumbered: tuple[Path, CpuTarget], seed: int
) -> None:
    """After drafts that held in part, and passes of other methods, a chain equals a new drafter's."""
    rng, (own, model) = random.Random(seed), renumbered
    drafter, letters = drafter_of(spelling_target, spelling, model, own), Tokenizer(spelling).encode("ledger keeps it")
    request = EngineRequest("r", (1,), SamplingParams(), k=4)
    tokens, draft = rng.choices(letters, k=rng.choice((1, 30, 64, 300))), drafter.begin(request)
    for _ in range(6):
        fresh = drafter.begin(request)
        trees = [drafter.propose([DraftRequest(each, tokens, BOLD)])[0] for each in (draft, fresh, fresh)]
        if len(tokens) < 256:
            assert trees[0] == trees[1] == trees[2]
        held = rng.randrange(len(trees[0]))
        tokens = [*tokens, *trees[0].tokens[1 : held + 1], *rng.choices(letters, k=rng.choice((1, 1, 5)))]
        fresh.release()
        draft.follow(tokens)
        assert draft.computed == draft.text.ids[: len(draft.computed)]
        if rng.random() < 0.2:
            draft.release()
    draft.release()
    assert model.blocks.used == 0


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_such_model_changes_a_token(
    target: CpuTarget, cramped_target: CpuTarget, model: Path, foreign: tuple[Path, CpuTarget], seed: int
) -> None:
    rng = random.Random(seed)
    requests = []
    for number in range(rng.randrange(1, 6)):
        prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 2, 40, 63, 64, 130))))
        method = rng.choice(("draft", "draft", "off"))
        requests.append(EngineRequest(f"r{number}", prompt, parameters(rng), rng.randrange(3), method=method))
    expected = {request.key: alone(target, request) for request in requests}
    own, drafting = foreign
    drafters = {"draft": drafter_of(target, model, drafting, own)}
    check_unchanged(rng.choice((target, cramped_target)), requests, expected, drafters, rng)
    assert drafting.blocks.used == 0


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CpuTarget]:
    """A model of another vocabulary and a short context, with a cache that few fit into."""
    folder = make_tiny_model(tmp_path_factory.mktemp("foreign"), vocab=300, layers=1, context=256, seed=4)
    return folder, load_target(folder, cache_tokens=6 * 64)
