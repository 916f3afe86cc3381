"""Datastores: time and memory to build one, time to find the passages near a request, memory of one that is mapped.

The corpus is the Python source that the environment has installed, cut at a number of tokens.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import resident
from services.datastores.builder import DatastoreBuilder
from services.datastores.documents import Document, find_files, read_documents
from services.datastores.tokenising import fast_tokenizer
from services.generation.target.identity import tokenizer_cid

if TYPE_CHECKING:
    from services.generation.drafting.retrieval.datastore import Datastore

SIZES = (1_000_000, 3_000_000, 10_000_000)  # tokens
_LOOKUPS = 200
_CONTEXT = 64  # tokens
_CHARACTERS_PER_TOKEN = 2.9  # of Python source, by the demo's tokenizer


def measure(model: Path) -> list[dict[str, Any]]:
    """A row for each size of corpus, each measured in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for size in SIZES:
            store = Path(folder) / str(size)
            built = _in_a_process("build", str(model), str(store), str(size))
            rows.append(built | _in_a_process("look up", str(model), str(store)))
        return rows


def _in_a_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.retrieval", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _build(model: Path, store: Path, tokens: int) -> dict[str, Any]:
    """Peaks of the whole process, or with the one that reads the tokenizer and has ended when the build begins."""
    tokenizer = fast_tokenizer(model)
    builder = DatastoreBuilder(model, tokenizer, tokenizer_cid(model))
    before = resident(field="VmHWM")
    start = time.perf_counter()
    manifest = builder.build(_documents(tokens), store)
    seconds = time.perf_counter() - start
    files = sum(blob.size for blob in manifest.blobs)
    child = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    whole = max(resident(field="VmHWM"), before + child)
    return {
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "build_seconds": round(seconds, 1),
        "store_bytes": files,
        "peak_resident_bytes": whole,
        "peak_over_store": round(whole / files, 2),
        "peak_growth_bytes": resident(field="VmHWM") - before,
        "peak_growth_over_store": round((resident(field="VmHWM") - before) / files, 2),
    }


def _documents(tokens: int) -> Iterator[Document]:
    """Python files in a seeded order, until about so many tokens have gone by."""
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]
    files = [file for file in find_files(roots) if file.suffix == ".py"]
    random.Random(0).shuffle(files)
    budget = tokens * _CHARACTERS_PER_TOKEN
    for document in read_documents(files, [], lambda _: None):
        yield document
        budget -= len(document.text)
        if budget <= 0:
            return


def _look_up(model: Path, folder: Path) -> dict[str, Any]:
    from services.generation.drafting.retrieval.datastore import Datastore  # its compiler is no part of a build

    before = resident(field="RssAnon")
    store = Datastore.open(folder, model, tokenizer_cid(model))
    rng = np.random.default_rng(0)
    contexts = [_context(store, rng) for _ in range(_LOOKUPS)]
    topics = []
    for context in contexts:
        start = time.perf_counter()
        store.nearest_passages(context, 16)
        topics.append(1e6 * (time.perf_counter() - start))
    return {
        "topic_median_us": round(float(np.median(topics)), 1),
        "private_growth_bytes": resident(field="RssAnon") - before,
    }


def _context(store: Datastore, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A stretch of the corpus with some tokens changed: what a request that resembles it ends with."""
    shard = store.shards[int(rng.integers(len(store.shards)))]
    start = int(rng.integers(max(1, len(shard.tokens) - _CONTEXT)))
    context = shard.tokens[start : start + _CONTEXT].astype(np.int64)
    changed = rng.random(len(context)) < 0.1
    context[changed] = rng.integers(0, store.manifest.vocab_size, int(changed.sum()))
    return context


if __name__ == "__main__":
    task, model, store, *rest = sys.argv[1:]
    found = _build(Path(model), Path(store), int(rest[0])) if task == "build" else _look_up(Path(model), Path(store))
    print(json.dumps(found))
