"""Datastores for the method rest: built, read, verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from services.cli.failures.exits import Failed, Missing, UsageError, VerificationFailed
from services.cli.terminal.output import talk
from services.datastores.builder import BuildFailed, BuildParameters, BuildProgress, DatastoreBuilder, check_out
from services.datastores.documents import CorpusInvalid, find_files, read_documents, with_text
from services.datastores.tokenising import fast_tokenizer
from services.generation.drafting.retrieval.manifest import Manifest, StoreInvalid, StoreMismatch
from services.generation.target.errors import TargetError
from services.generation.target.identity import tokenizer_cid


@contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of datastores, texts and bases into those of commands."""
    try:
        yield
    except (CorpusInvalid, StoreMismatch, TargetError) as error:
        raise UsageError(str(error)) from error
    except StoreInvalid as error:
        raise VerificationFailed(str(error)) from error
    except BuildFailed as error:
        raise Failed(str(error)) from error


def build(paths: list[Path], exclude: list[str], base: Path, out: Path, parameters: BuildParameters) -> Manifest:
    """Build with progress bars on stderr. Needs no torch."""
    skipped: list[Path] = []
    with _explained():
        check_out(out)
        files = find_files(paths, exclude)
        documents = with_text(read_documents(files, paths, skipped.append))
        tokenizer = fast_tokenizer(base)  # takes seconds: everything that can be refused was refused before
        builder = DatastoreBuilder(base, tokenizer, tokenizer_cid(base), parameters)
        with _progress(files) as progress:
            manifest = builder.build(documents, out, progress)
    if skipped:
        talk().print(f"{len(skipped):,} files are not UTF-8 text and were left out, {skipped[0]} among them")
    return manifest


@contextmanager
def _progress(files: list[Path]) -> Iterator[BuildProgress]:
    """A bar for the files, and one for the passages while they are embedded."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=talk()) as bars:
        total = sum(file.stat().st_size for file in files if file.exists())
        reading = bars.add_task(f"{len(files):,} files", total=total)
        embedding = bars.add_task("embedding", total=None, visible=False)

        def embedded(done: int, count: int) -> None:
            bars.update(reading, completed=total)
            bars.update(embedding, description=f"{count:,} passages", total=count, completed=done, visible=True)

        yield BuildProgress(lambda done: bars.update(reading, advance=done), embedded)


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


def _check_there(store: Path) -> None:
    if not store.is_dir():
        raise Missing(f"there is no datastore at {store}", "`kolm datastore build` makes one")
