"""What other engines are asked for."""

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.remote.dialects import DIALECTS


def test_top_p_and_min_p_are_shares_of_what_the_temperature_leaves_at_llama_server_too() -> None:
    asked = EngineRequest("r", (1,), SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05, top_k=40))
    order = DIALECTS["llama-server"].body(asked, "m", None, stream=False)["samplers"]
    assert order.index("penalties") < order.index("temperature") < order.index("min_p") < order.index("top_p")
