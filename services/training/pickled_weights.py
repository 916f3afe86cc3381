"""A head's `pytorch_model.bin` as safetensors: `python -m services.training.pickled_weights SOURCE TARGET`.

A pickle is a program. It is read here, in a process that does nothing else and is bounded in memory and time, by
torch's reader of weights alone (`weights_only`), which builds tensors and containers and calls nothing. A file that
holds anything but a flat mapping of names to tensors is refused. Prints one line of JSON: `{"tensors": N}`, or
`{"refused": REASON}` with exit code 1.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
from pathlib import Path

_SECONDS = 600  # of CPU time
_SHARED = 2  # times the file's size: names may share a tensor
_SPARE = 2 << 30  # bytes beside three copies of the file: the interpreter, torch and its pools


def main(source: str, target: str) -> int:
    _bound(Path(source).stat().st_size)
    try:
        count = _write(source, target)
    except _Refused as error:
        print(json.dumps({"refused": str(error)}))
        return 1
    print(json.dumps({"tensors": count}))
    return 0


class _Refused(Exception):
    """The file is not a flat mapping of names to tensors; the message names what it holds."""


def _bound(size: int) -> None:
    memory = 3 * size + _SPARE
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(source: str, target: str) -> int:
    import torch
    from safetensors.torch import save_file

    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _Refused(f"holds more than tensors: {_first_line(error)}") from error
    except MemoryError as error:
        raise _Refused("needs more memory than three times its size") from error
    except Exception as error:  # a damaged file raises whatever the place that reads it does
        raise _Refused(f"cannot be read: {type(error).__name__}: {_first_line(error)}") from error
    if not isinstance(found, dict):
        raise _Refused(f"holds a {type(found).__name__}; expected names and tensors")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise _Refused(f"holds a {type(value).__name__} under {name!r:.80}; expected tensors alone")
        if value.layout != torch.strided or value.is_quantized:
            raise _Refused(f"holds a tensor of layout {value.layout} under {name!r:.80}; expected plain numbers")
    size = sum(value.numel() * value.element_size() for value in found.values())
    if size > _SHARED * Path(source).stat().st_size:
        raise _Refused(f"holds tensors of {size} bytes, which is more than the file has")
    save_file({name: value.contiguous().clone() for name, value in found.items()}, target)
    return len(found)


def _first_line(error: Exception) -> str:
    """The line of torch's long message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "nsupported" in line or "GLOBAL" in line), (lines or [""])[0])[:300]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
