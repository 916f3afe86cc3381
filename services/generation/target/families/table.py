"""The one table of families."""

from __future__ import annotations

from collections.abc import Mapping

from services.generation.target.families.family import Family
from services.generation.target.families.gemma2 import GEMMA2
from services.generation.target.families.gemma3 import GEMMA3
from services.generation.target.families.gemma4 import GEMMA4
from services.generation.target.families.gpt_oss import GPT_OSS
from services.generation.target.families.llama import LLAMA
from services.generation.target.families.llama4 import LLAMA4
from services.generation.target.families.mistral import MISTRAL
from services.generation.target.families.mixtral import MIXTRAL
from services.generation.target.families.phi3 import PHI3
from services.generation.target.families.qwen2 import QWEN2
from services.generation.target.families.qwen3 import QWEN3
from services.generation.target.families.qwen3_moe import QWEN3_MOE
from services.generation.target.families.smollm3 import SMOLLM3

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, PHI3, GEMMA2, GEMMA3, QWEN3_MOE, MIXTRAL, GPT_OSS, LLAMA4, GEMMA4)

BY_ARCHITECTURE: Mapping[str, Family] = {
    name: family for family in FAMILIES for name in (family.architecture, family.multimodal) if name
}


def gguf_families(name: str) -> list[Family]:
    """Those whose GGUF files have this general.architecture; none where it is not supported."""
    return [family for family in FAMILIES if family.gguf_name and family.gguf_name == name]
