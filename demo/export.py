"""Write a model in transformers layout."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo.corpus.dialogue import BOUNDARY, END_OF_TURN


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bfloat16. Each file is replaced whole, so a reader never meets half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        half = copy.deepcopy(model).cpu().to(torch.bfloat16)
        half.generation_config = _generation_config(tokenizer)
        half.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        for file in staging.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Generation ends with the turn, and with the document where there are no turns."""
    ends = tokenizer.convert_tokens_to_ids([END_OF_TURN, BOUNDARY])
    return GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, do_sample=False)
