"""Cached states change no bit: they are found by the slots from which they were folded, and dropped with these."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from services.generation.target import cpu, states
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK, slot_of
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError, WeightsInvalid
from services.generation.target.rows import Rows, RowsBuilder
from services.generation.target.states import StateBook
from services.generation.target.weights import check_weights, open_weights
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_families import FAMILIES, draw_vectors, make_tiny_multimodal
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model, target_of
from tests.numerics.arithmetic import assert_same_bits


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **FAMILIES["qwen3_5"]))


@pytest.fixture(scope="module", params=["qwen3_5", "granite_hybrid"])
def folding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Float32]:
    """A model that folds states, and its logits of TOKENS."""
    path = draw_vectors(make_tiny_model(tmp_path_factory.mktemp("model"), **FAMILIES[request.param]))
    return path, logits_of(target_of(path))


@pytest.fixture(scope="module")
def expected(directory: Path) -> Float32:
    return logits_of(target_of(directory))


def test_a_row_is_one_step_from_the_state_that_the_row_before_it_left() -> None:
    book, table = StateBook(8, 16, taps=4), [3, 5, 4]
    (steps,) = book.plan(chunk_rows(table, 0, TOKENS[:70]))
    assert steps.rows.tolist() == list(range(70))
    assert steps.sources[0] == 0
    for position in (70, 71):
        (steps,) = book.plan(chunk_rows(table, position, [0]))
        assert steps.taps.tolist() == [[slot_of(table, p) for p in range(position - 3, position + 1)]]


def test_a_state_is_given_up_once_a_line_of_it_is_written_to() -> None:
    book, table = StateBook(8, 16, taps=4), [3, 5, 4]
    book.plan(chunk_rows(table, 0, TOKENS[:66]))
    book.written([5 * BLOCK + 2])  # the first slot after them
    assert len(book.plan(chunk_rows(table, 66, [0]))[-1]) == 1
    book.written([3 * BLOCK + 9])
    *before, steps = book.plan(chunk_rows(table, 67, [0]))
    assert sum(map(len, before)) == 67
    assert len(steps) == 1


def test_a_shared_prefix_is_folded_once() -> None:
    book = StateBook(8, 16, taps=4)
    book.plan(chunk_rows([3, 5], 0, TOKENS[:64]))
    for table in ([3, 6], [3, 7], [3, 8]):
        (steps,) = book.plan(chunk_rows(table, 64, [0]))
        assert len(steps) == 1


def test_branches_take_few_states_at_a_time_and_the_root_is_kept() -> None:
    book, parents = StateBook(8, 16, taps=3), [-1, 0, 0, 1, 1, 2, 2, 3, 5]
    book.plan(chunk_rows([1, 2], 0, TOKENS[:10]))
    (steps,) = book.plan(tree_rows([1, 2], 10, [0] * len(parents), parents))
    after = dict(zip(steps.rows.tolist(), steps.targets.tolist(), strict=True))
    assert sorted(after) == list(range(len(parents)))
    assert [number < book.kept for number in map(after.get, range(len(parents)))] == [True] + [False] * 8  # type: ignore[operator]
    assert len(set(after.values())) <= 4
    (steps,) = book.plan(chunk_rows([1, 2], 11, [0]))
    assert len(steps) == 1


@pytest.mark.parametrize("kept", [4, 5, 9])
def test_any_schedule_with_few_states_gives_the_same_bits(
    kept: int, folding: tuple[Path, Float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that begin alike, by turns and together, in trees of which a path is accepted, over shared blocks."""
    monkeypatch.setattr(cpu, "_MOST_STATES", kept)
    directory, expected = folding
    target, rng = target_of(directory), random.Random(kept)
    tables = [list[int]() for _ in range(4)]
    for table in tables:
        target.blocks.extend(table, len(TOKENS) + 16)
    lengths = [0] * len(tables)
    for _ in range(60):
        rows, chosen = RowsBuilder(), rng.sample(range(len(tables)), rng.randint(1, len(tables)))
        trees = {number: drawn_tree(rng, lengths[number]) for number in chosen}
        for number in chosen:
            rows.add_tree(tables[number], lengths[number], *trees[number])
        logits, first = target.forward(rows.build()).logits, 0
        for number in chosen:
            tokens, parents = trees[number]
            path = accepted(tokens, parents, lengths[number])
            for depth, node in enumerate(path):
                assert_same_bits(logits[first + node], expected[lengths[number] + depth])
            first += len(tokens)
            table, length = tables[number], lengths[number]
            target.move(*([slot_of(table, length + at) for at in each] for each in (path, range(len(path)))))
            lengths[number] += len(path)
            if lengths[number] >= len(TOKENS) - 1:
                lengths[number] = rng.choice([0, 30, BLOCK])
        if rng.random() < 0.2:
            begin_alike(target, tables, lengths, rng)


def drawn_tree(rng: random.Random, length: int) -> tuple[list[int], list[int]]:
    """A random tree of right and wrong tokens."""
    tokens, parents, depths = [TOKENS[length]], [-1], [0]
    for node in range(1, rng.choice([1, 2, 6, 12])):
        parent = rng.randrange(max(0, node - 3), node)
        depth = depths[parent] + 1
        if length + depth >= len(TOKENS):
            break
        tokens.append(TOKENS[length + depth] if rng.random() < 0.7 else 5)
        parents.append(parent)
        depths.append(depth)
    return tokens, parents


def accepted(tokens: list[int], parents: list[int], length: int) -> list[int]:
    path = [0]
    while True:
        right = TOKENS[length + len(path)] if length + len(path) < len(TOKENS) else None
        found = [node for node, parent in enumerate(parents) if parent == path[-1] and tokens[node] == right]
        if not found:
            return path
        path.append(found[0])


def begin_alike(target: CpuTarget, tables: list[list[int]], lengths: list[int], rng: random.Random) -> None:
    """One sequence gives up what it has, and takes over the first block of another."""
    one, other = rng.sample(range(len(tables)), 2)
    if lengths[other] <= BLOCK:
        return
    target.blocks.release(tables[one])
    target.blocks.keep(tables[other][0], lambda: None)
    target.blocks.share(tables[one], tables[other][0])
    target.blocks.extend(tables[one], len(TOKENS) + 16)
    lengths[one] = BLOCK


def test_a_history_longer_than_a_pass_folds_is_caught_up_with(
    directory: Path, expected: Float32, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MOST_STEPS", 24)
    target, table = target_of(directory), list[int]()
    target.blocks.extend(table, len(TOKENS))
    for position, token in enumerate(TOKENS):
        if position > 80:
            assert target._states
            target._states.forget()
        logits = target.forward(chunk_rows(table, position, [token])).logits
    assert_same_bits(logits[0], expected[-1])


def test_levels_of_a_tree_may_be_passes_of_their_own(directory: Path, expected: Float32) -> None:
    target, table = target_of(directory), list[int]()
    target.blocks.extend(table, len(TOKENS))
    target.forward(chunk_rows(table, 0, TOKENS[:40]))
    slots = [slot_of(table, at) for at in range(41, 60)]

    def level(*nodes: tuple[int, int, int, tuple[int, ...]]) -> Float32:
        """Logits of nodes: a token, a position, a slot, and the slots of its branch."""
        rows = Rows.empty(len(nodes), [table], sum(len(branch) for *_, branch in nodes))
        for row, (token, position, slot, branch) in enumerate(nodes):
            rows.tokens[row], rows.positions[row], rows.lengths[row], rows.slots[row] = (
                token,
                position,
                position + 1,
                slot,
            )
            rows.contiguous[row], start = position + 1 - len(branch), rows.branch_starts[row]
            rows.branch_starts[row + 1] = start + len(branch)
            rows.branches[start : start + len(branch)] = branch
        return np.array(target.forward(rows).logits)

    level((TOKENS[40], 40, slot_of(table, 40), ()))
    level((7, 41, slots[0], (slots[0],)), (TOKENS[41], 41, slots[1], (slots[1],)))
    level(*((token, 42, slots[n], (slots[1], slots[n])) for n, token in ((2, 9), (3, TOKENS[42]))))
    found = level((TOKENS[43], 43, slots[4], (slots[1], slots[3], slots[4])))
    assert_same_bits(found[0], expected[43])


def test_layers_that_see_and_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    make_tiny_multimodal(tmp_path, "qwen3_5")
    config, tensors = read_config(tmp_path), load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("model.visual.") for name in tensors)
    expected = logits_of(target_of(tmp_path))
    some = next(tensor for name, tensor in tensors.items() if "visual" not in name)
    save_file(tensors | {"mtp.layers.0.self_attn.q_proj.weight": some.clone()}, tmp_path / "model.safetensors")
    check_weights(open_weights(tmp_path), config)
    assert_same_bits(logits_of(target_of(tmp_path)), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear_conv_kernel_dim": 5}, r"conv1d\.weight has shape \[192, 4\], by the configuration \[192, 5\]"),
        ({"linear_num_value_heads": 2}, r"linear_attn\..* has shape"),
        ({"layer_types": ["full_attention"] * 4}, r"layers\.0\.self_attn\..* missing"),
    ],
)
def test_tensors_of_other_states_are_refused(
    change: dict[str, Any], message: str, directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(directory, tmp_path / "m")
    document = json.loads((directory / "config.json").read_bytes())
    (tmp_path / "m" / "config.json").write_text(json.dumps(document | change))
    with pytest.raises(TargetError, match=message):
        check_weights(open_weights(tmp_path / "m"), read_config(tmp_path / "m"))


@pytest.mark.parametrize("exponent", [89.0, 3e6, 1e30])
def test_a_state_that_decays_infinitely_fast_is_refused(
    folding: tuple[Path, Float32], exponent: float, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(folding[0], tmp_path / "m"))
    tensors = load_file(model / "model.safetensors")
    name = min(name for name in tensors if name.endswith("A_log"))
    tensors[name][-1] = exponent
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(WeightsInvalid, match=name):
        target_of(model)
