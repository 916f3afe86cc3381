"""One of two processes on one run: `test_trainer` starts it twice, as torchrun would."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from services.training.devices import devices, end_process
from tests.unit.training.material import material_of
from tests.unit.training.test_trainer import trainer_of

STEPS = 3


def main(folder: Path, base: Path) -> None:
    torch.set_num_threads(1)
    with devices("cpu") as place:
        trainer = trainer_of(material_of(base), place)
        reports = [trainer.step() for _ in range(STEPS)]
        if place.leads:
            torch.save(trainer.head.state_dict(), folder / "head.pt")
    print(json.dumps([asdict(report) for report in reports]))
    end_process()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
