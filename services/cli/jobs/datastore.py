"""Datastores for the method rest: built, read, verified, searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from services.cli.failures.exits import Failed, Missing, UsageError, VerificationFailed
from services.cli.terminal.output import talk
from services.datastores.builder import BuildFailed, BuildParameters, BuildProgress, DatastoreBuilder, check_out
from services.datastores.documents import CorpusInvalid, find_files, read_documents, with_text
from services.datastores.tokenising import fast_tokenizer
from services.generation.drafting.retrieval.datastore_error import EmbedderInvalid, StoreInvalid, StoreMismatch
from services.generation.drafting.retrieval.embedders.models import Models
from services.generation.drafting.retrieval.embedders.sentence_model import SentenceModel
from services.generation.drafting.retrieval.manifest import Manifest
from services.generation.target.errors import TargetError
from services.generation.target.folders.identity import tokenizer_cid

_CACHE_TOKENS = 2048  # for the passages of a pass


@contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of datastores, corpora and bases into those of commands."""
    try:
        yield
    except (CorpusInvalid, EmbedderInvalid, StoreMismatch, TargetError) as error:
        raise UsageError(str(error)) from error
    except StoreInvalid as error:
        raise VerificationFailed(str(error)) from error
    except BuildFailed as error:
        raise Failed(str(error)) from error


def build(
    paths: list[Path],
    exclude: list[str],
    base: Path,
    out: Path,
    parameters: BuildParameters,
    embedder: Path | None,
) -> Manifest:
    """Build with progress bars on stderr. Imports torch only if passages go through layers or another model."""
    skipped: list[Path] = []
    with _explained():
        check_out(out)
        files = find_files(paths, exclude)
        documents = with_text(read_documents(files, paths, skipped.append))
        models = _models(base, parameters, embedder)
        tokenizer = fast_tokenizer(base)  # takes seconds: everything that can be refused was refused before
        models = replace(models, tokenizer=tokenizer)
        builder = DatastoreBuilder(base, tokenizer, tokenizer_cid(base), parameters, models)
        with _progress(files) as progress:
            manifest = builder.build(documents, out, progress)
    if skipped:
        talk().print(f"{len(skipped):,} files are not UTF-8 text and were left out, {skipped[0]} among them")
    return manifest


@contextmanager
def _progress(files: list[Path]) -> Iterator[BuildProgress]:
    """A bar for the files, and one for the passages while they are embedded, which takes longest through layers."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=talk()) as bars:
        total = sum(file.stat().st_size for file in files if file.exists())
        reading = bars.add_task(f"{len(files):,} files", total=total)
        embedding = bars.add_task("embedding", total=None, visible=False)

        def embedded(done: int, count: int) -> None:
            bars.update(reading, completed=total)
            bars.update(embedding, description=f"{count:,} passages", total=count, completed=done, visible=True)

        yield BuildProgress(lambda done: bars.update(reading, advance=done), embedded)


def _models(base: Path, parameters: BuildParameters, embedder: Path | None) -> Models:
    """The models that embed the passages, loaded. Raises UsageError if the base has no such layer."""
    if embedder is not None:
        if parameters.layer:
            raise UsageError("--embedding-layer is a layer of the base; leave it out with --embedder")
        return Models(base, sentences=SentenceModel.load(embedder))
    if not parameters.layer:
        return Models(base)
    from services.generation.target.config.config import read_config

    layers = read_config(base).layers
    if parameters.layer > layers:
        raise UsageError(f"--embedding-layer: {base} has {layers} layers; expected 0 to {layers}")
    from services.generation.target.loading import load_target

    return Models(base, load_target(base, cache_tokens=max(_CACHE_TOKENS, parameters.passage_tokens)))


def read(store: Path) -> Manifest:
    """Raises Missing, VerificationFailed."""
    _check_there(store)
    with _explained():
        return Manifest.read(store)


def verify(store: Path) -> Manifest:
    """The manifest of a datastore whose files are all as it says. Raises Missing, VerificationFailed."""
    manifest = read(store)
    with _explained():
        for blob in manifest.blobs:
            blob.check(store, contents=True)
    return manifest


def search(store: Path, base: Path, text: str, tokens: int, count: int) -> dict[str, Any]:
    """The longest ending of `text` that occurs, in tokens, and its continuations by frequency."""
    from services.generation.drafting.retrieval.datastore import Datastore  # imports numba, which a build does not need

    _check_there(store)
    with _explained():
        tokenizer = fast_tokenizer(base)
        opened = Datastore.open(store, base, tokenizer_cid(base), near=False)
        context = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
        hits = opened.search(context, tokens)
    longest = int(hits.lengths.max(initial=0))
    rows = [tuple(t for t in row if t >= 0) for row in hits.continuations[hits.lengths == longest].tolist()]
    ranked = sorted(Counter(rows).items(), key=lambda found: (-found[1], found[0]))[:count]
    matched = tokenizer.decode(context[len(context) - longest :].tolist())
    return {
        "matched": matched,
        "matched_tokens": longest,
        "continuations": [{"text": tokenizer.decode(row), "token_ids": list(row), "count": n} for row, n in ranked],
    }


def _check_there(store: Path) -> None:
    if not store.is_dir():
        raise Missing(f"there is no datastore at {store}", "`kolm corpus build` makes one")
