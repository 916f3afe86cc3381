"""transformers without torch: kolm needs only its configurations and tokenizers.

If torch is installed, transformers imports it, with torch.distributed and sympy, which takes most of a start on the
CPU. transformers also scans the 1,600 files of its models, for a third of a second, and again when a configuration is
imported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def hide_torch() -> None:
    """Import transformers as if torch were not installed; kolm's own modules can still import torch.

    Called at the start of a process that computes on the CPU. It does nothing if torch is imported already.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # imports fail as if it were not installed
    try:
        utils: Any = importlib.import_module("transformers.utils.import_utils")
        utils.is_torch_available()  # caches its answer
        models, read = Path(utils.__file__).parents[1] / "models", utils.create_import_structure_from_path
        names = {str(models / "__init__.py"): models}  # the key under which the scan is cached
        utils.create_import_structure_from_path = lambda path: read(names.get(path, path))
    finally:
        del sys.modules["torch"]
