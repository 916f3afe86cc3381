"""The block head that is trained computes what the one that drafts computes, every part of it learns, and a run that
was stopped ends in the same bits.
"""

from pathlib import Path

import numpy as np
import torch

from services.generation.drafting.block.block_checkpoint import load_block_head
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.target.rows import RowsBuilder
from services.training.block import BlockModule, block_sums
from services.training.kscore import measure
from services.training.plan import LessonPlan, Steps
from services.training.trainer import Trainer, export
from services.training.unroll import Window, window_of
from tests.unit.training.material import PROMPTS, Material
from tests.unit.training.test_trainer import CPU

STEPS = 12


def window(material: Material, numbers: list[int]) -> Window:
    answers = [material.answers[number] for number in numbers]
    return window_of(answers, material.recordings.of(numbers)).to(torch.device("cpu"), torch.float32)


def trainer(material: Material, head: BlockModule) -> Trainer:
    plan = LessonPlan(steps_unrolled=4, starts_per_pass=64, precision="float32")
    return Trainer(head, material.teacher(), material.answers, material.recordings, plan, Steps(STEPS), CPU)


def test_every_row_of_every_start_equals_the_head_that_drafts(material: Material, tmp_path: Path) -> None:
    head, numbers = material.block(), [0, 3, 5]
    export(tmp_path / "head", head, material.target_ids, torch.float32, {})
    loaded = load_block_head(tmp_path / "head", material.target.config)
    with torch.no_grad():
        states, before = head.states(window(material, numbers)), head.before(window(material, numbers))
        logits, sure = head.logits(states, before), head.confidence(states, before).sigmoid()
    size = head.config.block_size
    for line, number in enumerate(numbers):
        answer, recorded = material.answers[number], material.recordings.of([number])[0]
        features = torch.from_numpy(recorded.features).view(torch.bfloat16).float().numpy()
        for start in (0, len(answer.said) - 2):
            computing = BlockPass(loaded, material.target, 4, 256)
            table, length = list[int](), len(answer.prompt) + start
            computing.blocks.extend(table, length + size)
            rows = RowsBuilder()
            rows.add_chunk(table, 0, [0] * length, False)
            computing.store(rows.build(), features[:length])
            rows = RowsBuilder()
            rows.add_block(table, length, [answer.said[start], *[head.config.mask_token] * (size - 1)])
            out = computing.draft(rows.build())
            tokens = [*answer.said, *[0] * size][start : start + size]
            found = computing.add_previous(out.logits, tokens)
            np.testing.assert_allclose(out.states, states[line, start], atol=2e-4)
            np.testing.assert_allclose(found, logits[line, start], atol=2e-3)
            np.testing.assert_allclose(computing.confidence(out.states, tokens), sure[line, start], atol=1e-4)


def test_the_loss_of_a_row_leaves_rows_behind_an_answer_s_end_out(material: Material) -> None:
    head, numbers = material.block(), [0, 1, 2]
    lengths = [len(material.answers[number].said) for number in numbers]
    sums = block_sums(head, material.teacher(), window(material, numbers), torch.ones(4))
    alone = [block_sums(head, material.teacher(), window(material, [number]), torch.ones(4)) for number in numbers]
    torch.testing.assert_close(sums.losses, sum(each.losses for each in alone))
    assert sums.losses.shape == (4,)
    assert (sums.right <= torch.tensor([sum(max(0, n - row - 1) for n in lengths) for row in range(4)])).all()


def test_training_lowers_the_loss_changes_every_weight_and_continues_bit_for_bit(
    material: Material, tmp_path: Path
) -> None:
    straight, halves = trainer(material, material.block()), trainer(material, material.block())
    before = {name: tensor.clone() for name, tensor in straight.head.state_dict().items()}
    losses = [sum(straight.step().losses) for _ in range(STEPS)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert all(not torch.equal(tensor, before[name]) for name, tensor in straight.head.state_dict().items())
    for _ in range(STEPS // 2):
        halves.step()
    halves.save(tmp_path / "checkpoint.pt")
    again = trainer(material, material.block(seed=2))
    again.load(tmp_path / "checkpoint.pt")
    for _ in range(STEPS // 2):
        again.step()
    for name, tensor in straight.head.state_dict().items():
        assert torch.equal(tensor, again.head.state_dict()[name]), name


def test_a_trained_block_is_measured_as_other_heads_are(material: Material, tmp_path: Path) -> None:
    export(tmp_path / "head", material.block(), material.target_ids, torch.bfloat16, {})
    head = load_block_head(tmp_path / "head", material.target.config)
    seen = measure(material.target, head, [prompt.tokens for prompt in PROMPTS[:4]], k=4, max_tokens=12)
    assert seen.prompts == 4
    assert len(seen.acceptance_by_depth) == 4
