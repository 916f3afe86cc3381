"""Write a model in transformers layout."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from demo.toy.corpus.dialogue import BOUNDARY, END_OF_TURN


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bfloat16. Each file is replaced whole, so a reader never meets half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        _half(model, tokenizer).save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        for file in sorted(staging.iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _half(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A bfloat16 copy. Generation ends with the turn, and with the document where there are no turns."""
    half: PreTrainedModel = copy.deepcopy(model)
    half.to(device=torch.device("cpu"), dtype=torch.bfloat16)  # type: ignore[call-arg]
    ends = tokenizer.convert_tokens_to_ids([END_OF_TURN, BOUNDARY])
    half.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, do_sample=False
    )
    return half
