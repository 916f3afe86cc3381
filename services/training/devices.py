"""Several processes on one run, each with its device: started by torchrun, or one process alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import llvmlite.binding as llvm
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from services.training.plan import Precision, SettingsInvalid

Item = TypeVar("Item")
_BFLOAT16 = ("avx512bf16", "amx-bf16", "bf16")
"""Instructions for products in bfloat16, by LLVM's names: of x86-64, and of AArch64."""


@dataclass(frozen=True, slots=True)
class Devices:
    """This process's place among `count`."""

    rank: int
    count: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether it is this process that writes and speaks for all of them."""
        return self.rank == 0

    def share(self, items: list[Item]) -> list[Item]:
        """This process's part."""
        return items[self.rank :: self.count]

    def together(self, module: nn.Module) -> nn.Module:
        """`module` with gradients averaged over all processes."""
        if self.count == 1:
            return module
        return DistributedDataParallel(module, forward_sync_buffers=False)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def agree(self, said: bool) -> bool:
        """True where any process says so."""
        return bool(self.sum(torch.tensor(float(said), device=self.device)).item())

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()


def faster_precision(wanted: str | None) -> Precision:
    """The precision in which a device (as `devices` takes it) multiplies faster. A CPU without instructions for
    bfloat16 takes about five times as long in it.
    """
    if _kind(wanted) == "cuda":
        return "bfloat16"
    has = llvm.get_host_cpu_features()
    return "bfloat16" if any(has.get(each) for each in _BFLOAT16) else "float32"


def _kind(wanted: str | None) -> str:
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def devices(wanted: str | None) -> Iterator[Devices]:
    """The processes of this run: those of torchrun (RANK, WORLD_SIZE, LOCAL_RANK), or this one.

    `wanted` is `cpu`, `cuda` or None for CUDA where there is a device.

    Raises:
        SettingsInvalid: there is no such device.
    """
    kind = _kind(wanted)
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise SettingsInvalid(f"device: {kind!r} is not supported here; supported: cpu, and cuda where torch has one")
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if kind == "cuda" else kind)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if count > 1:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        place = Devices(rank, count, device)
        yield place
        place.wait()
    finally:
        if count > 1:
            dist.destroy_process_group()


def end_process() -> None:
    """End this process at once, successfully, where it is one of several; alone, do nothing.

    The interpreter's own way out can wait for ever for gloo's and autograd's worker threads, which in turn wait for the
    interpreter's lock (https://github.com/pytorch/pytorch/issues/190489), and torchrun would wait with it. To be called
    last, after `devices` was left: what was written is flushed, nothing else runs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
