"""llama.cpp's server, out of xllamacpp: `python -m tests.engines.llama_server PORT [SPECULATION]`, until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from services.generation.target.model_path import model_path


def serve(port: int, speculation: str | None, model: Path = Path("smollm2")) -> None:
    """`speculation`: a name of llama.cpp's, such as NGRAM_SIMPLE; None serves without."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = str(model_path(model)), 8192, 2, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("LLAMA_THREADS", "1"))
    params.verbosity, params.port, params.endpoint_metrics = -1, port, True
    if speculation is not None:
        types = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{speculation}")]
        for kind in (params.speculative.ngram_simple, params.speculative.ngram_map_k):
            kind.size_n, kind.size_m = 3, 8  # tokens that have to agree, and that are drafted then
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
