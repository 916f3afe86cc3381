"""transformers without torch, of which kolm needs configurations and tokenizers alone.

Any import of transformers brings torch along where that is installed, and with it torch.distributed and
sympy: most of the time of a start on the CPU, where kolm's own kernels compute. It also looks through the 1,600 files
of its models, a third of a second, and once more where a configuration is imported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def spare_torch() -> None:
    """Makes transformers take torch for missing from now on; kolm's own modules can still import it.

    For the start of a process that computes on the CPU. Nothing where torch is there already.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # what an import then finds missing
    try:
        asked: Any = importlib.import_module("transformers.utils.import_utils")
        asked.is_torch_available()  # remembers its answer
        models, read = Path(asked.__file__).parents[1] / "models", asked.create_import_structure_from_path
        names = {str(models / "__init__.py"): models}  # what it remembers it goes by the other name
        asked.create_import_structure_from_path = lambda path: read(names.get(path, path))
    finally:
        del sys.modules["torch"]
