"""What the `kolm corpus` commands do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from services.cli.exits import Failed, UsageError, VerificationFailed
from services.cli.output import talk
from services.generation.drafting.retrieval.builder import BuildParameters, DatastoreBuilder
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.documents import find_files, read_documents
from services.generation.drafting.retrieval.errors import (
    BuildFailed,
    CorpusInvalid,
    EmbedderInvalid,
    StoreInvalid,
    StoreMismatch,
)
from services.generation.drafting.retrieval.manifest import Manifest
from services.generation.drafting.retrieval.models import Models
from services.generation.drafting.retrieval.sentence_model import SentenceModel
from services.generation.engine.tokenizer import Tokenizer
from services.generation.target.config import read_config
from services.generation.target.errors import TargetError
from services.generation.target.identity import tokenizer_cid
from services.generation.target.loading import load_target

_CACHE_TOKENS = 2048  # for the passages of a pass


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of datastores, corpora and bases as those of commands."""
    try:
        yield
    except (CorpusInvalid, EmbedderInvalid, StoreMismatch, TargetError) as error:
        raise UsageError(str(error)) from error
    except StoreInvalid as error:
        raise VerificationFailed(str(error)) from error
    except BuildFailed as error:
        raise Failed(str(error)) from error


def build(paths: list[Path], base: Path, out: Path, parameters: BuildParameters, embedder: Path | None) -> Manifest:
    """Build with a progress bar on stderr."""
    skipped: list[Path] = []
    with _explained():
        files = find_files(paths)
        tokenizer = Tokenizer(base)
        models = _models(base, tokenizer, parameters, embedder)
        builder = DatastoreBuilder(base, tokenizer.fast, tokenizer_cid(base), parameters, models)
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        with Progress(*columns, console=talk()) as progress:
            total = sum(file.stat().st_size for file in files if file.exists())
            task = progress.add_task(f"{len(files):,} files", total=total)
            documents = read_documents(files, paths, skipped.append)
            manifest = builder.build(documents, out, lambda done: progress.update(task, advance=done))
            progress.update(task, completed=total)
    if skipped:
        talk().print(f"{len(skipped):,} files are not UTF-8 text and were left out, {skipped[0]} among them")
    return manifest


def _models(base: Path, tokenizer: Tokenizer, parameters: BuildParameters, embedder: Path | None) -> Models:
    """What is needed to embed, loaded. Raises UsageError where the base has no such layer."""
    if embedder is not None:
        if parameters.layer:
            raise UsageError("--embedding-layer is a layer of the base; leave it out with --embedder")
        return Models(base, sentences=SentenceModel.load(embedder), tokenizer=tokenizer.fast)
    if not parameters.layer:
        return Models(base)
    layers = read_config(base).layers
    if parameters.layer > layers:
        raise UsageError(f"--embedding-layer: {base} has {layers} layers; expected 0 to {layers}")
    return Models(base, load_target(base, cache_tokens=max(_CACHE_TOKENS, parameters.passage_tokens)))


def read(store: Path) -> Manifest:
    with _explained():
        return Manifest.read(store)


def verify(store: Path) -> Manifest:
    with _explained():
        manifest = Manifest.read(store)
        for blob in manifest.blobs:
            blob.check(store, contents=True)
        return manifest


def search(store: Path, base: Path, text: str, tokens: int, count: int) -> dict[str, Any]:
    """The longest end of `text` that occurs, in tokens, and its continuations by frequency."""
    with _explained():
        tokenizer = Tokenizer(base)
        opened = Datastore.open(store, base, tokenizer_cid(base), near=False)
        context = np.array(tokenizer.fast.encode(text, add_special_tokens=False).ids, np.int64)
        hits = opened.search(context, np.zeros(0, np.int64), tokens)
    longest = int(hits.lengths.max(initial=0))
    rows = [tuple(t for t in row if t >= 0) for row in hits.continuations[hits.lengths == longest].tolist()]
    ranked = sorted(Counter(rows).items(), key=lambda found: (-found[1], found[0]))[:count]
    matched = tokenizer.decode(context[len(context) - longest :].tolist())
    return {
        "matched": matched,
        "matched_tokens": longest,
        "continuations": [{"text": tokenizer.decode(row), "token_ids": list(row), "count": n} for row, n in ranked],
    }


def to_json(store: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "store": str(store),
        "cid": manifest.cid,
        "tokenizer_cid": manifest.tokenizer_cid,
        "vocab_size": manifest.vocab_size,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": len(manifest.shards),
        "bytes": sum(blob.size for blob in manifest.blobs),
        "embedding": manifest.embedding.to_document(),
        "parameters": manifest.parameters,
    }
