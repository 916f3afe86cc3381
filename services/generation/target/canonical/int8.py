"""Whether a model's weights can be computed with in int8 arithmetic: `docs/numerics.md`, Linear with int8."""

from __future__ import annotations

from collections.abc import Sequence

from services.generation.target.canonical.kernels.storages import PANEL, packed_as
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import ModuleSpec, layer_specs
from services.generation.target.errors import ArithmeticUnsupported
from services.generation.target.weights import Weights


def check_int8(config: TargetConfig, weights: Weights) -> None:
    """Raises ArithmeticUnsupported where no layer is quantised, or modules that are computed as one cannot be joined
    without being widened to float32.
    """
    quantised = False
    for layer in layer_specs(config):
        for modules in layer.groups:
            storages = [weights.storage(f"{layer.prefix}{module.name}.weight") for module in modules]
            quantised = quantised or any(packed_as(storage).quantised for storage in storages)
            if len(set(storages)) > 1 and not _stay_apart(modules, alternating=layer.alternates(modules)):
                raise ArithmeticUnsupported(
                    f"arithmetic: int8 needs {modules[0].name} and its neighbours in one storage, but layer "
                    f"{layer.prefix.rstrip('.')} has {', '.join(storages)}; use arithmetic float32"
                )
    if not quantised:
        raise ArithmeticUnsupported(
            f"arithmetic: int8 needs quantised weights, but {weights.path.name} holds plain numbers; use a GGUF file "
            "of the model (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q4_K, Q5_K, Q6_K), or arithmetic float32"
        )


def _stay_apart(modules: Sequence[ModuleSpec], *, alternating: bool) -> bool:
    """Whether modules in several storages become several matrices (`program.matrices`)."""
    return not alternating and not any(module.outputs % PANEL for module in modules[:-1])
