"""Several processes on one run, each with its device: started by torchrun, or one process alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from services.training.training_error import SettingsInvalid

Item = TypeVar("Item")


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


@contextmanager
def devices(wanted: str | None) -> Iterator[Devices]:
    """The processes of this run: those of torchrun (RANK, WORLD_SIZE, LOCAL_RANK), or this one.

    `wanted` is `cpu`, `cuda` or None for CUDA where there is a device.

    Raises:
        SettingsInvalid: there is no such device.
    """
    kind = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
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
