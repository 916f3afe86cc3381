"""Train the two bundled LoRA adapters: `python -m demo.toy.train_adapters`.

Both rewrite how the base answers in support chats. `courteous` changes a phrase here and there; `capitals` changes
nearly every token, which no draft head that was trained for the base can follow.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from rich.console import Console
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.corpus import style
from demo.toy.corpus.dialogue import Split, render
from demo.toy.corpus.mixture import Tokens, fixed_windows
from demo.toy.trainer import Windows, token_weights
from services.generation.target.folders.identity import base_cid
from services.training.head.optimiser import rate_factor

_DIALOGUES = 6000
_HELD_OUT_DIALOGUES = 200
_HELD_OUT_WINDOWS = 12
_LENGTH = 384  # tokens in a window
_WINDOWS = 4  # in a step
_RATE = 4e-3
_EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A step takes about 0.7 s of one core."""

    rank: int
    modules: tuple[str, ...]
    steps: int


RECIPES = {"courteous": Recipe(4, ("q_proj", "k_proj", "v_proj", "o_proj"), 100), "capitals": Recipe(8, _EVERY, 300)}


class AdapterTraining:
    """One adapter in training. Only what the assistant says counts; windows are drawn from `seed` alone."""

    def __init__(self, name: str, base: Path, seed: int, dialogues: int = _DIALOGUES) -> None:
        recipe = RECIPES[name]
        torch.manual_seed(seed)
        config = LoraConfig(
            r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules=list(recipe.modules), task_type="CAUSAL_LM"
        )
        tokenizer = bpe.load(base)
        self.model: PeftModel = get_peft_model(LlamaForCausalLM.from_pretrained(base, dtype=torch.float32), config)
        self._tokens = tokenise(tokenizer, name, "train", dialogues)
        held_out = tokenise(tokenizer, name, "held_out", min(dialogues, _HELD_OUT_DIALOGUES))
        self._held_out = fixed_windows(held_out, _LENGTH, _HELD_OUT_WINDOWS)
        self._rng = np.random.default_rng(seed)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.AdamW(self._parameters, lr=_RATE, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, fraction: float) -> float:
        """One step at `fraction` of the run; its loss in nats a token."""
        self.model.train()
        for group in self._optimiser.param_groups:
            group["lr"] = _RATE * rate_factor(fraction, decay_from=0.4)
        loss = self._loss(self._windows())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Nats a token of what the assistant says in held-out chats of the style."""
        self.model.train(False)
        return float(np.mean([self._loss(window[None]).item() for window in self._held_out]))

    def _windows(self) -> Windows:
        starts = self._rng.integers(len(self._tokens) - _LENGTH - 1, size=_WINDOWS)
        return np.stack([self._tokens[at : at + _LENGTH + 1] for at in starts]).astype(np.int64)

    def _loss(self, windows: Windows) -> torch.Tensor:
        tokens = torch.from_numpy(windows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
        spoken = token_weights(tokens[:, :-1]) == 1.0
        return losses[spoken].mean()


def tokenise(tokenizer: PreTrainedTokenizerFast, name: str, split: Split, dialogues: int) -> Tokens:
    """Chats in the style of an adapter, one after the other, as one row of token ids."""
    texts = list(map(render, style.documents(name, split, dialogues)))
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encoded])


def train(training: AdapterTraining, steps: int, console: Console) -> None:
    recent = None
    with console.status("") as status:
        for step in range(steps):
            loss = training.step(step / steps)
            recent = loss if recent is None else 0.95 * recent + 0.05 * loss
            status.update(f"step {step + 1} of {steps}  loss {recent:.3f}")


def save(model: PeftModel, folder: Path, base: Path) -> None:
    """peft's layout, weights in bfloat16, bound to this very base by its identifier in `revision`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in get_peft_model_state_dict(model).items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base.name, "revision": base_cid(base), "inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in sorted(config.items())}
    (folder / "adapter_config.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    console = Console()
    for name in options.only or RECIPES:
        training = AdapterTraining(name, options.base, options.seed)
        before, steps = training.held_out_loss(), options.steps or RECIPES[name].steps
        train(training, steps, console)
        save(training.model, options.out / name, options.base)
        console.print(
            f"{name}: held-out loss of its style {before:.3f} by the base, "
            f"{training.held_out_loss():.3f} after {steps} steps; wrote {options.out / name}"
        )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.train_adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", type=Path, default=here / "base", help="the base's folder (demo/toy/base)")
    parser.add_argument("--out", type=Path, default=here / "adapters", help="where the adapters go (demo/toy/adapters)")
    parser.add_argument("--only", choices=sorted(RECIPES), action="append", help="one of them; may be repeated")
    parser.add_argument("--steps", type=int, help="other than the recipe's 100 and 300")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
