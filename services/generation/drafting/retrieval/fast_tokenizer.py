"""A base's tokenizer for processes that need nothing else of it.

The transformers library may change what tokenizer.json says, so it is asked; in a process of its own, which gives the
memory back, and without torch, which it would load for nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from services.generation.target.errors import ConfigInvalid


def fast_tokenizer(directory: Path) -> FastTokenizer:
    """The one that `engine.tokenizer.Tokenizer` has for the same directory.

    Raises ConfigInvalid if the directory has no fast tokenizer that loads.
    """
    command = [sys.executable, "-m", __name__, str(directory)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        said = done.stdout.strip() or done.stderr.strip() or f"exit {done.returncode}"
        raise ConfigInvalid(said if str(directory) in said else f"{directory}: the tokenizer does not load: {said}")
    return FastTokenizer.from_str(done.stdout)


def _main(directory: Path) -> int:
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it fails from here on
    from services.generation.engine.tokenizer import Tokenizer

    try:
        print(Tokenizer(directory).fast.to_str())
    except ConfigInvalid as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
