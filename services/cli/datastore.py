"""`kolm datastore`: build, show and check datastores for the method rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError, VerificationFailed
from services.cli.frame.output import answer, bars, members, remark, stderr_console
from services.cli.frame.process import stop_signals
from services.cli.frame.views import MARKS, View, counted, facts
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from services.datastores.builder import BuildParameters, BuildProgress
    from services.generation.drafting.retrieval.manifest import Manifest


Store = Annotated[Path, Argument(help="A datastore's folder.")]
Model = Annotated[Path, options.model("--model", "The model that will use it; its tokenizer and embeddings are used.")]


def build(
    paths: Annotated[
        list[Path],
        Argument(help="Files and folders: text, Markdown, JSON lines, HTML. With --answers: JSON lines of prompts."),
    ],
    out: Annotated[Path, Option(help="Folder for the datastore; must not exist.")],
    exclude: Annotated[
        list[str] | None,
        Option(metavar="PATTERN", help="Leave out files and folders of this name, as in *.css; may be repeated."),
    ] = None,
    model: Model = options.MODEL,
    passage_tokens: Annotated[int, Option(min=8, help="Tokens of a passage.")] = 128,
    answers: Annotated[
        int | None,
        Option(min=1, help="First let the model answer this many prompts: lines of PATHS with prompt or messages."),
    ] = None,
    answer_tokens: Annotated[int, Option(min=1, help="Limit of an answer, in tokens.")] = 256,
    json: options.Json = False,
) -> None:
    """Tokenize, sort suffixes, embed passages. The folder appears once it is complete. With --answers the corpus is
    the model's own answers; after Ctrl-C or a crash the same command continues.
    """
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UsageError(f"{', '.join(missing)}: No such file or directory; expected files and folders of text")

    if answers and exclude:
        raise UsageError("--exclude: with --answers, PATHS are files of prompts; leave it out")

    from services.datastores.builder import BuildParameters

    parameters = BuildParameters(passage_tokens=passage_tokens)
    if answers is None:
        manifest = build_datastore(paths, exclude or [], model, out, parameters)
    else:
        manifest = build_of_answers(paths, answers, answer_tokens, model, out, parameters)
    answer(json, _document(out, manifest, verified=False), _manifest_view)


def show(
    store: Store,
    verify: Annotated[
        bool, Option("--verify", help="Hash every file again; if one has changed, name it and exit with code 3.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show the contents of a datastore, and how it was built."""
    if not store.is_dir():
        raise exits.NotFound(f"there is no datastore at {store}", "`kolm datastore build` makes one")

    from services.generation.drafting.retrieval.manifest import Manifest

    with _explained():
        manifest = Manifest.read(store)
        for blob in manifest.blobs if verify else ():
            blob.check(store, contents=True)
    answer(json, _document(store, manifest, verified=verify), _manifest_view)


@contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of datastores, texts and bases into errors of commands."""
    from services.datastores.builder import BuildFailed
    from services.datastores.documents import DocumentsInvalid
    from services.generation.drafting.retrieval.manifest import StoreInvalid, StoreMismatch

    try:
        yield
    except (DocumentsInvalid, StoreMismatch, TargetError) as error:
        raise UsageError(str(error)) from error
    except StoreInvalid as error:
        raise VerificationFailed(str(error)) from error
    except BuildFailed as error:
        raise Failed(str(error)) from error


def build_datastore(
    paths: list[Path], exclude: list[str], base: Path, out: Path, parameters: BuildParameters
) -> Manifest:
    """Build with progress bars on stderr. Needs no torch."""
    from services.datastores.builder import DatastoreBuilder, check_out
    from services.datastores.documents import find_files, read_documents, with_text
    from services.datastores.tokenising import fast_tokenizer
    from services.generation.target.identity import tokenizer_cid

    skipped: list[Path] = []
    with _explained():
        check_out(out)
        files = find_files(paths, exclude)
        documents = with_text(read_documents(files, paths, skipped.append))
        tokenizer = fast_tokenizer(base)  # takes seconds: after all checks
        builder = DatastoreBuilder(base, tokenizer, tokenizer_cid(base), parameters)
        with _progress(files) as progress:
            manifest = builder.build(documents, out, progress)
    if skipped:
        remark(f"left out {len(skipped):,} files that are not UTF-8 text, such as {skipped[0]}")
    return manifest


def build_of_answers(
    paths: list[Path], most: int, max_tokens: int, base: Path, out: Path, parameters: BuildParameters
) -> Manifest:
    """Let the base answer at most `most` prompts, then build a datastore of its answers. Needs no torch. Raises
    CommandError, and Exit after Ctrl-C or SIGTERM.
    """
    from services.datastores.answering import answer_documents, answer_prompts, answers_file
    from services.datastores.builder import DatastoreBuilder, alone, check_out
    from services.datastores.documents import with_text
    from services.generation.engine.text.tokenizer import Tokenizer
    from services.generation.target.cpu import load_target
    from services.training.prompts import AnswerFile, PromptsInvalid, read_prompts

    came: list[int] = []
    try:
        with _explained():
            check_out(out)
            with stderr_console().status("loading the model"):
                tokenizer, target = Tokenizer(base), load_target(base)
            longest = target.config.context_length - max_tokens
            prompts = read_prompts(paths, tokenizer, longest)[:most]
            path = answers_file(out, target.base_cid, max_tokens)
            with alone(path), stop_signals(came.append), _answering(len(prompts)) as progress:
                file = AnswerFile(path)
                complete = answer_prompts(target, prompts, file, max_tokens, progress, lambda: bool(came))
            if not complete:
                remark(f"stopped; the same command continues from {file.path}")
                raise Exit(exits.INTERRUPTED)
            documents = with_text(answer_documents(file, prompts, tokenizer))
            builder = DatastoreBuilder(base, tokenizer.fast, target.tokenizer_cid, parameters)
            with _progress([file.path]) as built:
                return builder.build(documents, out, built)
    except PromptsInvalid as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise Failed(f"{error.filename or out}: {error.strerror}", "the same command continues") from error


@contextmanager
def _answering(total: int) -> Iterator[Callable[[int], None]]:
    """A bar of answers; yields a function that takes their number so far."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    counted = TextColumn("{task.completed:.0f} of {task.total:.0f} answers")
    with bars(counted, BarColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _progress(files: list[Path]) -> Iterator[BuildProgress]:
    """A bar for the files, and one for the passages while they are embedded."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from services.datastores.builder import BuildProgress

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=stderr_console()) as bars:
        total = sum(file.stat().st_size for file in files if file.exists())
        reading = bars.add_task(f"{len(files):,} files", total=total)
        embedding = bars.add_task("embedding", total=None, visible=False)

        def embedded(done: int, count: int) -> None:
            bars.update(reading, completed=total)
            bars.update(embedding, description=f"{count:,} passages", total=count, completed=done, visible=True)

        yield BuildProgress(lambda done: bars.update(reading, advance=done), embedded)


def _document(store: Path, manifest: Manifest, *, verified: bool) -> dict[str, Any]:
    """The JSON of a datastore, sizes in bytes. `verified`: every file was hashed and has the manifest's digest."""
    return members(manifest, "cid", "tokenizer_cid", "vocab_size", "documents", "tokens", "embedding", "parameters") | {
        "store": store,
        "shards": len(manifest.shards),
        "files": len(manifest.blobs),
        "bytes": sum(blob.size for blob in manifest.blobs),
        "embedding_cid": manifest.embedding.cid,
        "verified": verified,
    }


def _manifest_view(store: dict[str, Any]) -> View:
    return facts(
        ("store", store["store"]),
        ("cid", store["cid"]),
        ("tokenizer", store["tokenizer_cid"]),
        ("documents", f"{store['documents']:,}"),
        ("tokens", f"{store['tokens']:,} in {counted(store['shards'], 'shard')}"),
        ("on disk", f"{store['bytes'] / 1e6:,.1f} MB"),
        ("embedded by", store["embedding_cid"]),
        ("built with", ", ".join(f"{key} {value}" for key, value in sorted(store["parameters"].items()))),
        ("verified", (MARKS[True], f" {counted(store['files'], 'file')} as in the manifest"))
        if store["verified"]
        else None,
    )
