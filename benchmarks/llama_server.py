"""`python -m benchmarks.llama_server -m FILE --port PORT`: run xllamacpp's llama.cpp server until SIGTERM, with the
flags of llama-server that the benchmarks use.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from services.generation.target.model_path import model_path


def serve(given: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_gpu_layers = str(model_path(given.model)), 0
    params.n_ctx, params.n_parallel, params.port = given.context, given.slots, given.port
    params.cpuparams.n_threads, params.cpuparams_batch.n_threads = given.threads, given.prompt_threads
    params.cache_ram_mib, params.verbosity, params.endpoint_metrics = given.cache, -1, True
    if given.speculation is not None:
        name = given.speculation.upper().replace("-", "_")
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name}")]
        for kind in (params.speculative.ngram_simple, params.speculative.ngram_map_k):
            kind.size_n, kind.size_m = 3, 8  # lengths of the matched n-gram and of the draft
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama_server", description=__doc__)
    parser.add_argument("-m", dest="model", type=Path, default=Path("smollm2"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-c", dest="context", type=int, default=8192, help="context of all slots together, in tokens")
    parser.add_argument("-np", dest="slots", type=int, default=2)
    parser.add_argument("-t", dest="threads", type=int, default=1)
    parser.add_argument("-tb", dest="prompt_threads", type=int, default=1)
    parser.add_argument("--cache-ram", dest="cache", type=int, default=8192, help="limit of the prompt cache, in MiB")
    parser.add_argument("--spec-type", dest="speculation", help="such as ngram-map-k (n-grams of 3, drafts of 8)")
    serve(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
