"""Buffers of passes: what fits them, and memory that is taken again."""

import hashlib
import mmap
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.arrays import Bytes, Float32
from services.generation.target.blocks import BLOCK
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.program import buffers
from services.generation.target.program.buffers import ReusedMemory
from services.generation.target.program.team import Team
from tests.examples import grid
from tests.fakes.engine_runs import run
from tests.fakes.rows import chunk_rows, tree_rows
from tests.fakes.tiny_model import logits_of, make_tiny_model, target_of

CONTEXT = 128
CANARY = 0xA5
AFTER = 1 << 18  # bytes of canaries after each buffer


@dataclass
class Guarded:
    """Buffers with canaries after them."""

    memory: list[tuple[Bytes, int]] = field(default_factory=list)

    def allocate(self, count: int) -> Bytes:
        whole = np.zeros(count + AFTER + 64, np.uint8)
        whole = whole[-whole.ctypes.data % 64 :]
        whole[count:] = CANARY
        self.memory.append((whole, count))
        return whole[:count]

    @property
    def overwritten(self) -> int:
        return sum(int((whole[count:] != CANARY).sum()) for whole, count in self.memory)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """Canaries after the buffers of the test's targets, whose passes use all requested threads."""
    honest, guard = Team.run, Guarded()

    def by_all(self: Team, words: Any, threads: int, *, wait: bool = False) -> None:
        honest(self, words, threads, wait=True)

    monkeypatch.setattr(Team, "run", by_all)
    monkeypatch.setattr(buffers, "on_huge_pages", guard.allocate)
    yield guard
    assert len(guard.memory) > 5


@pytest.fixture(scope="module", params=[1, 2, 3, 8])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with so many key heads."""
    path = tmp_path_factory.mktemp("heads")
    heads = {"heads": 2 * request.param, "kv_heads": request.param, "head_dim": 16}
    return make_tiny_model(path, layers=1, hidden=48, context=CONTEXT, **heads)


def tree_near_the_end(target: CpuTarget, nodes: int) -> str:
    """The digest of a star's logits under a prompt that leaves two places of the context."""
    length = CONTEXT - 2
    with target.blocks.lent(length + nodes) as table:
        target.forward(chunk_rows(table, 0, [(7 * i) % 384 for i in range(length)], want_last=False))
        tree = tree_rows(table, length, [(5 * i + 1) % 384 for i in range(nodes)], [-1, *[0] * (nodes - 1)])
        logits = target.forward(tree).logits
    return hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "threads"), grid(2, [1, 2, 3, 8], [2, 8, 16, 32]), indirect=["model"], scope="module"
)
def test_a_tree_near_the_contexts_end_stays_within_the_buffers(model: Path, threads: int, guarded: Guarded) -> None:
    alone, together = (target_of(model, threads=members) for members in (1, threads))
    for nodes in (1, 31, 63, 85, 127, 200, 255):
        assert tree_near_the_end(together, nodes) == tree_near_the_end(alone, nodes), nodes
        assert guarded.overwritten == 0, nodes


@pytest.mark.slow
def test_a_request_with_a_wide_window_stays_within_the_buffers(tmp_path: Path, guarded: Guarded) -> None:
    path = make_tiny_model(tmp_path, layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, context=CONTEXT)
    asked = EngineRequest(
        "r", tuple(range(5, 25)), SamplingParams(max_tokens=CONTEXT - 20, ignore_eos=True),
        method="lookahead", parameters={"window": 20, "ngram": 10},
    )  # fmt: skip
    outcomes = []
    for threads, request in ((1, replace(asked, method="off", parameters={})), (1, asked), (32, asked)):
        drafters = {"lookahead": LookaheadDrafter()}
        outcomes.append(run(target_of(path, threads=threads), [request], drafters=drafters).outcomes[request.key])
        assert guarded.overwritten == 0
    assert len({outcome.stream_digest for outcome in outcomes}) == 1
    assert outcomes[0].finish_reason == "length"


def test_wide_inputs_of_layers_stay_within_the_buffers(tmp_path: Path, guarded: Guarded) -> None:
    path = make_tiny_model(
        tmp_path, architecture="gemma4", vocab=300, layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16,
        global_head_dim=16, layer_types=["full_attention"], hidden_size_per_layer_input=12_000,
        vocab_size_per_layer_input=300, num_kv_shared_layers=0, tie_word_embeddings=True,
    )  # fmt: skip
    logits_of(target_of(path, threads=1), [12], range(12))
    assert guarded.overwritten == 0


def test_a_row_past_the_context_is_refused_before_a_kernel_runs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, table = target_of(model, threads=1), list[int]()
    target.blocks.extend(table, CONTEXT + 1)
    rows = chunk_rows(table, CONTEXT, [1])
    monkeypatch.setattr(Team, "run", None)
    with pytest.raises(ValueError, match=str(CONTEXT)):
        target.forward(rows)


def test_memory_is_handed_out_again_when_the_array_and_all_views_of_it_have_gone() -> None:
    memory = ReusedMemory()
    first = memory.take(4, 16)
    place = first.ctypes.data
    row = first[2, :3].reshape(3)[::-1]
    del first
    second = memory.take(4, 16)
    assert second.ctypes.data != place
    row[:] = 7.0
    second[:] = 1.0
    np.testing.assert_array_equal(row, 7.0)
    del row
    assert memory.take(2, 16).ctypes.data == place


def test_little_is_not_held_in_the_memory_of_much() -> None:
    memory = ReusedMemory()
    for rows, kept in ((1 << 10, 1 << 10), (1 << 9, 1 << 10), (1, 1)):
        array = memory.take(rows, 1 << 13)
        array[:] = 0.0
        del array
        assert [each.size for each in memory._free] == [kept << 13]


def test_arrays_that_are_in_use_share_nothing() -> None:
    memory = ReusedMemory()
    held = [memory.take(rows, 32) for rows in (1, 5, 3, 256, 0, 2)]
    for number, array in enumerate(held):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(held))
    assert [array.shape for array in held] == [(rows, 32) for rows in (1, 5, 3, 256, 0, 2)]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in held)


def test_released_memory_is_that_of_unused_blocks_only(model: Path) -> None:
    target = load_target(model, cache_tokens=40 * BLOCK)

    def logits() -> Float32:
        with target.blocks.lent(CONTEXT) as table:
            return target.forward(chunk_rows(table, 0, range(CONTEXT))).logits.copy()

    def used_bytes(block: int) -> int:
        return np.count_nonzero(np.frombuffer(target.block_content(block), np.uint8))

    with target.blocks.lent(CONTEXT), target.blocks.lent(BLOCK) as held:
        target.forward(chunk_rows(held, 0, range(BLOCK)))
        expected, content = logits(), target.block_content(held[0])
        unused = [block for run in target.blocks.unused() for block in run]
        before = sum(map(used_bytes, unused))
        target.release_memory()
        assert target.block_content(held[0]) == content
        assert sum(map(used_bytes, unused)) < before or sys.platform != "linux"
    assert np.array_equal(logits(), expected)


def mapped_kilobytes(path: Path) -> int:
    """Pages of a file that this process has mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines[first:] if line.startswith("Rss:"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is dropped")
def test_only_pages_of_a_file_are_unmapped_and_keep_their_bytes(tmp_path: Path) -> None:
    content = bytes(range(1, 256)) * (1 << 12)
    (path := tmp_path / "file").write_bytes(content)
    with path.open("rb") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8).reshape(255, -1)
    own = np.frombuffer(content, np.uint8)
    assert array.sum() == own.sum()
    assert mapped_kilobytes(path) >= len(content) >> 10
    for each in (array, own, np.ones(1 << 20, np.uint8)):
        buffers.unmap(each)
    assert mapped_kilobytes(path) == 0
    assert array.tobytes() == own.tobytes() == content
