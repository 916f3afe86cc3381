"""`kolm heads pull` and `list`: published heads, fetched and checked."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from ledger.audit.draft_head_evidence import (
    PROVENANCE,
    DraftHeadEvidence,
    PublishedDraftHead,
    check_files,
    verify_draft_head,
)
from ledger.documents.manifests import DraftHeadManifest
from ledger.encoding.canonical import canonical
from ledger.errors import DraftHeadRefused
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import ledger_at, registry_at
from services.cli.frame.output import answer, members, transfers
from services.cli.frame.pull import pulled_model
from services.cli.frame.views import DASH, MARKS, Column, Line, Styled, Table, View, facts, size, table
from services.cli.trust import load_trusted
from services.client.errors import DataLoss, DeadlineExceeded, NotFound, Unavailable
from services.client.head_folder import alone_in, check_withdrawals, fetch_head, find_head
from services.client.ledger.ledger import LedgerClient
from services.client.registry import Head, RegistryClient, SignedWord, file_digest

Reference = Annotated[str, Argument(help="name, name@sha256:<digits>, or cidv1:sha256:…")]
Base = Annotated[str | None, Option("--base", metavar="CID", help="Only heads for this base.")]


_DRAFTED = 4  # the number of draft tokens in the guide of each engine


def pull(
    reference: Annotated[
        str,
        Argument(
            help="name, name@sha256:<digits>, cidv1:sha256:…, or hf:OWNER/REPOSITORY[@REVISION] of a hub, which needs "
            "--model; with --check also a pulled folder."
        ),
    ],
    out: Annotated[Path | None, Option(help="Folder to fill. Default: <data-dir>/heads/<digits>.")] = None,
    check: Annotated[
        bool, Option("--check", help="Keep no files; only check publisher, place in the log and every byte.")
    ] = False,
    offline: Annotated[
        bool, Option("--offline", help="With --check of a folder: do not ask the ledger about withdrawals.")
    ] = False,
    base: Base = None,
    model: Annotated[
        Path | None,
        Option(callback=pulled_model, help="The base of a hub's head, which is converted for it."),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sglang", "llama-server"] | None,
        Option("--for", help="Print the flags that make this engine draft with the head."),
    ] = None,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Fetch a head and check all of it against the ledger's signed tree. Exit code 3 if a check fails.

    A hub's head is in no ledger: it is checked against the hub's digests and converted to kolm's layout.
    """
    if reference.startswith("hf:"):
        if model is None:
            raise UsageError("--model: a hub's head is converted for a base; expected its folder, file or name")
        if check or offline or out is not None or base is not None:
            raise UsageError("--check, --offline, --out and --base: are for published heads; leave them out")
        return answer(json, _hub_head(reference, model, engine), lambda head: [each for each in head.values() if each])
    if model is not None:
        raise UsageError("--model: is for heads of a hub; leave it out, or use --base")
    if check and out is not None:
        raise UsageError("--out: cannot be combined with --check, which keeps no files")
    if check and engine is not None:
        raise UsageError("--for: cannot be combined with --check, which keeps no files")
    if offline and not check:
        raise UsageError("--offline: nothing can be fetched without a server; use it with --check")

    keys = load_trusted(paths.trusted)
    if check:
        checked = verified(reference, keys, registry, None if offline else ledger, base)
        return answer(json, checked.document(), _checked_view)
    with registry_at(registry) as client, ledger_at(ledger) as log:
        pulled = pull_head(client, log, keys, reference, base_cid=base, out=out, cache=paths.data_dir / "heads")
    flags = {} if engine is None or pulled.folder is None else {"flags": engine_flags(engine, pulled.folder)}
    answer(json, pulled.document() | flags, lambda head: [head["folder"], head["head_cid"], *flags.values()])


def _hub_head(name: str, model: Path, engine: str | None) -> dict[str, Any]:
    from services.cli.foreign_heads import hub_head
    from services.client.head_folder import manifest_of
    from services.generation.target.identity import base_cid

    folder = hub_head("REFERENCE", name, model, ask_hub=True)
    manifest = manifest_of(folder, base_cid(model))
    flags = {} if engine is None else {"flags": engine_flags(engine, folder)}
    return {"folder": str(folder), "head_cid": manifest.cid, **flags}


def engine_flags(engine: str, folder: Path) -> str:
    """The flags of another engine, as a shell takes them, that make it draft with the head in `folder`."""
    method, place = _method_of(folder), str(folder.resolve())
    match engine:
        case "vllm":
            config = {"method": method, "model": place, "num_speculative_tokens": _DRAFTED}
            words = ["--speculative-config", dumps(config)]
        case "sglang":
            words = ["--speculative-algorithm", method.upper(), "--speculative-draft-model-path", place]
            words += ["--speculative-num-draft-tokens", str(_DRAFTED)]
        case _:  # reads GGUF, which its convert_hf_to_gguf.py makes: FOLDER --target-model-dir BASE --outfile …
            words = ["--spec-type", f"draft-{method}", "--model-draft", f"{place}/head.gguf"]
    return shlex.join(words)


def _method_of(folder: Path) -> str:
    """The draft method, by the names that engines give to layouts of config.json, as in `drafting/heads.py`."""
    document = loads((folder / "config.json").read_text(encoding="utf-8"))
    names = f"{document.get('speculators_model_type')} {document.get('architectures')} {document.get('layout')}".lower()
    return next((kind for kind in ("dspark", "dflash") if kind in names), "eagle3")


def list_(
    reference: Annotated[str | None, Argument(help="Show the record of this head, withdrawn or not.")] = None,
    base: Base = None,
    name: Annotated[str | None, Option(help="Only heads of this name.")] = None,
    every: Annotated[bool, Option("--all", help="Include withdrawn heads.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """List heads, the oldest first, or show one."""
    if reference is not None and (name is not None or every):
        raise UsageError("--name and --all: filter the list of heads; leave them out for a named head")

    with registry_at(registry) as client:
        if reference is not None:
            head = client.resolve(reference, base_cid=base, include_withdrawn=True)
            return answer(json, head_document(head), _head_view)
        heads = [head_document(head) for head in client.heads(base_cid=base, name=name, include_withdrawn=every)]
    answer(json, heads, _heads_view)


@dataclass(frozen=True, slots=True)
class Checked:
    """A checked head, equal to its publication. `withdrawn` is None if the ledger could not be asked."""

    head: PublishedDraftHead
    withdrawn: bool | None
    folder: Path | None = None

    def document(self) -> dict[str, Any]:
        """`withdrawn` is null if the ledger could not be asked."""
        head, manifest = self.head, self.head.manifest
        place = {"head_cid": head.cid, "base_cid": manifest.subject, "ledger_index": head.index, "size": manifest.size}
        published = members(head.publication, "name", "publisher", "issued_at") | members(head, "tree_size")
        return place | published | members(self, "withdrawn", "folder")


def pull_head(
    registry: RegistryClient,
    ledger: LedgerClient,
    trusted: TrustedKeys,
    reference: str,
    *,
    base_cid: str | None = None,
    out: Path | None = None,
    cache: Path,
) -> Checked:
    """Fetch a head into `out`, or into `cache/<digits of its identifier>`, and check it.

    Raises KolmError, DraftHeadRefused, UsageError, OSError.
    """
    evidence, published = find_head(registry, ledger, trusted, reference, base_cid)
    folder = out or cache / published.cid.removeprefix("cidv1:sha256:")
    was_there = folder.exists()
    with alone_in(folder):
        _check_place(folder, published)
        is_new = not was_there and not any(folder.iterdir())
        try:
            with transfers("downloading") as progress:
                fetch_head(registry, evidence, published, folder, lambda part, at: progress(part.name, at, part.size))
        except (DataLoss, NotFound, DraftHeadRefused):
            if is_new:  # permanent errors; an interrupted pull keeps its files
                shutil.rmtree(folder, ignore_errors=True)
            for part in published.manifest.files:
                (folder / f"{part.name}.part").unlink(missing_ok=True)
            raise
    return Checked(published, False, folder)


def _check_place(folder: Path, published: PublishedDraftHead) -> None:
    """Check that no file from elsewhere is overwritten. Raises UsageError, OSError."""
    if (folder / PROVENANCE).exists():
        return
    for part in published.manifest.files:
        path = folder / part.name
        if path.exists() and (path.stat().st_size != part.size or file_digest(path) != part.digest):
            raise UsageError(f"--out: {path} exists and is not a file of this head", "name another folder")


def _withdrawn(ledger: LedgerClient | None, published: PublishedDraftHead) -> bool | None:
    """Whether the head was withdrawn; None without an answer from the ledger."""
    if ledger is None:
        return None
    try:
        check_withdrawals(ledger, published.cid)
    except (Unavailable, DeadlineExceeded):
        return None
    return False


def verified(
    head: str, trusted: TrustedKeys, registry: str, ledger: str | None, base_cid: str | None = None
) -> Checked:
    """Check a folder, or the head of a reference.

    Raises DraftHeadRefused, FormatError, KolmError, UsageError.
    """
    folder = _folder_of(head)
    if folder is not None:
        published = verify_draft_head(DraftHeadEvidence.read(folder), trusted)
        check_files(published.manifest, folder)
        with ledger_at(ledger) if ledger else nullcontext() as log:
            return Checked(published, _withdrawn(log, published), folder)
    if ledger is None:
        raise UsageError(f"{head} is not a folder; a reference cannot be checked with --offline")
    with registry_at(registry) as client, ledger_at(ledger) as log, tempfile.TemporaryDirectory() as scratch:
        checked = pull_head(client, log, trusted, head, base_cid=base_cid, cache=Path(scratch))
        return Checked(checked.head, checked.withdrawn)


def local_folder(head: str, trusted: Path, registry: str, ledger: str, cache: Path) -> Path:
    """The folder of a head. A reference's head is fetched into the cache and checked first.

    Raises what `pull` and `load_trusted` raise.
    """
    given = _folder_of(head)
    if given is not None:
        return given
    keys = load_trusted(trusted)
    with registry_at(registry) as client, ledger_at(ledger) as log:
        folder = pull_head(client, log, keys, head, cache=cache).folder
    assert folder is not None
    return folder


def _folder_of(head: str) -> Path | None:
    """The folder that `head` names, None for a reference. Raises UsageError if it can be neither.

    A reference has no slash. A word without a slash is a folder only if it has a head in it, so that a head with the
    name of a directory (`demo`, in this repository) is found by its name.
    """
    folder = Path(head)
    if "/" in head and not folder.is_dir():
        raise UsageError(f"there is no folder {head}", "a reference is a name, name@sha256:<digits> or cidv1:sha256:…")
    return folder if "/" in head or (folder / "config.json").is_file() else None


def head_document(head: Head) -> dict[str, Any]:
    """A head with full identifiers, its manifest, and the signed documents about it, with their places in the log."""
    return {
        "head_cid": head.head_cid,
        "base_cid": head.base_cid,
        "size": head.described.size,
        "names": list(head.names),
        "publications": [_word(each) for each in head.publications],
        "withdrawal": head.withdrawal and _word(head.withdrawal),
        "kscores": [_word(each) for each in head.kscores],
        "manifest": head.described.to_document(),
    }


def _word(signed: SignedWord[Any]) -> dict[str, Any]:
    return {"ledger_index": signed.ledger_index, **signed.document.to_document()}


def _heads_view(heads: list[dict[str, Any]]) -> View:
    """One line for each head; `name@sha256:<digits>` takes the digits."""
    return table(
        heads,
        Column("name", lambda head: ", ".join(head["names"])),
        Column("head", lambda head: _digits(head["head_cid"])),
        Column("base", lambda head: _digits(head["base_cid"])),
        Column("size", lambda head: size(head["size"]), right=True),
        Column("published", _dates),
        Column("by", lambda head: head["publications"][0]["publisher"]),
        Column("k-score", lambda head: _score(head["kscores"][0]) if head["kscores"] else DASH, right=True),
        empty="no heads",
    )


def _head_view(head: dict[str, Any]) -> Table:
    """The record of one head."""
    manifest = DraftHeadManifest.from_bytes(canonical(head["manifest"]))
    layers = ", ".join(map(str, manifest.feature_layers))
    rows: list[tuple[Line, ...]] = [
        ("head", head["head_cid"]),
        ("base", head["base_cid"]),
        ("reads", f"features of layers {layers}, drafts {manifest.draft_vocab_size} of {manifest.vocab_size}"),
    ]
    rows += [(part.name, f"{size(part.size)}, {part.digest}") for part in manifest.files]
    for each in head["publications"]:
        rows.append(("published", f"{each['name']} by {each['publisher']}, entry {each['ledger_index']}"))
    for score in head["kscores"]:
        adapter = score["adapter_cid"] or "the bare base"
        rows.append(("k-score", (_score(score), f" for {adapter}, entry {score['ledger_index']}")))
    if (gone := head["withdrawal"]) is not None:
        rows.append((Styled("withdrawn", "red"), f"{gone['reason']}, entry {gone['ledger_index']}"))
    return facts(*rows)


def _checked_view(checked: dict[str, Any]) -> View:
    """The checklist: all checks passed, but withdrawals may be unknown."""
    return [
        facts(
            (MARKS[True], "The manifest is well-formed and names its base"),
            (MARKS[True], "A trusted publisher has signed its publication"),
            (MARKS[True], "The publication is in the signed log"),
            (MARKS[True], "Every file has the size and digest of the manifest"),
            (MARKS[None if checked["withdrawn"] is None else True], "No publisher has withdrawn it"),
        ),
        f"{checked['name']}: {checked['head_cid']}",
    ]


def _digits(identifier: str) -> str:
    return f"{identifier.removeprefix('cidv1:sha256:')[:8]}…"


def _dates(head: dict[str, Any]) -> Line:
    published, gone = _day(head["publications"][0]), head["withdrawal"]
    return published if gone is None else (f"{published} ", Styled(f"withdrawn {_day(gone)}", "red"))


def _day(signed: dict[str, Any]) -> str:
    return str(signed["issued_at"][: len("2026-01-02")])


def _score(score: dict[str, Any]) -> Styled:
    if score["status"] == "GOOD":
        return Styled(f"{score['mean_acceptance']:.2f}", "green")
    return Styled(f"{score['mean_acceptance']:.2f} needs retraining", "yellow")
