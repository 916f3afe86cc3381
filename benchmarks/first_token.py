"""`python -m benchmarks.first_token MODEL`: loads, probes and times a model as a server does, and computes a token.

The process imports no more than a server. Its one line is the probe's result, when the token is there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from services.generation.target.without_torch import spare_torch

_PROMPT = "Explain to a ten-year-old why the sky is blue during the day and red in the evening."


def main(path: Path) -> dict[str, Any]:
    spare_torch()
    from services.generation.engine.core import EngineCore, EngineSettings
    from services.generation.engine.events import Event
    from services.generation.engine.request import EngineRequest, SamplingParams
    from services.generation.preparation import load_model
    from services.generation.target.cpu import load_target

    model = load_model(path, load_target)
    core = EngineCore(
        model.target, model.drafters, model.tokenizer.stream, model.cost, EngineSettings(), time.perf_counter
    )
    made: list[Event] = []
    core.add(EngineRequest("0", tuple(model.tokenizer.encode(_PROMPT)), SamplingParams(max_tokens=1)), made.append)
    while not core.idle:
        core.step()
    return {"passed": model.profile.report.passed, "compared": model.profile.report.compared}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
