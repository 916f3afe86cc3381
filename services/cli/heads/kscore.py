"""`kolm heads kscore`: acceptance of a head's drafts, bare and with adapters, measured and put on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ledger.audit.draft_head_evidence import DraftHeadEvidence
from ledger.documents.draft_head import THRESHOLD, KScore, kscore_status
from ledger.documents.manifests import DraftHeadManifest
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import timestamp
from ledger.errors import DraftHeadUnlogged
from ledger.keys.signer import Signer
from services.cli.frame import options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.options import registry_at
from services.cli.frame.output import answer, bars, stderr_console
from services.cli.frame.values import expect_files, expect_folder
from services.cli.frame.views import Column, Styled, View, table
from services.cli.heads.fetch import local_folder
from services.cli.heads.publish import Publisher
from services.client.head_folder import HeadFolderInvalid, manifest_of
from services.client.registry import RegistryClient
from services.generation.target.errors import TargetError
from services.generation.target.model_path import HEAD_FOLDER

_INSIDE = "mtp"
"""The name of the block inside the model."""

if TYPE_CHECKING:
    from services.generation.drafting.heads import DraftHead
    from services.generation.target.cpu import CpuTarget
    from services.training.kscore import Measured, Prompt


def kscore(
    head: Annotated[
        str,
        Argument(
            help="A folder with a head, a reference that is fetched and checked, or mtp: the block inside the model."
        ),
    ],
    prompts: Annotated[list[Path], Option(metavar="FILE", help="JSON lines with prompt or messages.")],
    adapters: Annotated[
        list[Path] | None,
        Option(metavar="DIR", help="An adapter in peft's layout, or a folder of adapters; may be repeated."),
    ] = None,
    limit: Annotated[int, Option(min=1, help="Number of prompts from each file.")] = 16,
    max_tokens: Annotated[int, Option(min=2, help="Limit of an answer, in tokens.")] = 64,
    model: options.TrainedOn = options.MODEL,
    record: Annotated[bool, Option("--record/--no-record", help="Sign the scores and put them on record.")] = True,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Measure the share of a head's drafts that the base accepts, bare and with adapters (k = 4, temperature 0).

    Below 0.5 the head needs retraining for that adapter: generation services no longer choose it there by themselves.
    """
    files = tuple(prompts)
    expect_files("--prompts", files, "JSON lines with prompt or messages")
    if "/" in head:
        expect_folder("HEAD", Path(head), HEAD_FOLDER)

    if head == _INSIDE and record:
        raise UsageError("--record: the block inside a model is in no registry, which keeps scores", "add --no-record")

    keys, adapted = paths.trusted, _adapters_in(adapters or [])
    folder = None if head == _INSIDE else local_folder(head, keys, registry, ledger, paths.data_dir / "heads")
    on = _loaded(folder, model, adapted, files, limit, max_tokens)
    if record:
        us = Publisher.load(paths.key("publisher", key), keys, passphrase_file=key_passphrase_file)
        with registry_at(registry) as client, us.explaining():
            client.head(on.head_cid)  # before the measurement: the registry takes scores of its own heads only
            scores = _recorded(_measured(on), client, us.key)
    else:
        scores = _measured(on)
    answer(json, [each.document() for each in scores], _scores_view)


@dataclass(frozen=True, slots=True)
class Scored:
    """The score for one adapter, None for the bare base; `ledger_index` is None if it was not recorded."""

    adapter: str | None
    score: KScore
    ledger_index: int | None = None

    def document(self) -> dict[str, Any]:
        """The document that was signed, or would be, with its adapter's name and place in the ledger."""
        judged = {"adapter": self.adapter, "ledger_index": self.ledger_index, "status": self.score.status}
        return self.score.to_document() | judged


def _adapters_in(directories: Sequence[Path]) -> dict[str, Path]:
    """Adapters by the names of their directories, also of those in a directory of adapters. Raises UsageError."""
    found: dict[str, Path] = {}
    for directory in directories:
        inside = [directory, *(sorted(directory.iterdir()) if directory.is_dir() else ())]
        adapters = [each for each in inside if (each / "adapter_config.json").is_file()]
        if not adapters:
            raise UsageError(f"--adapters: no adapter_config.json in {directory} or in a directory of it")
        for adapter in adapters:
            name = adapter.resolve().name
            if (other := found.setdefault(name, adapter)).resolve() != adapter.resolve():
                raise UsageError(f"--adapters: {other} and {adapter} are both called {name}", "rename one folder")
    return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """The target, the head and the prompts of a measurement, in memory."""

    target: CpuTarget
    head: DraftHead
    head_cid: str
    profile_cid: str
    prompts: tuple[Prompt, ...]
    max_tokens: int


def _loaded(
    folder: Path | None, model: Path, adapters: Mapping[str, Path], files: tuple[Path, ...], limit: int, max_tokens: int
) -> Loaded:
    """Load the target, the head and the prompts, `limit` of each file; without a folder, the head inside the model.

    Raises UsageError.
    """
    from services.generation.drafting.heads import HeadError
    from services.generation.engine.text.tokenizer import Tokenizer
    from services.generation.target.cpu import load_target
    from services.generation.target.probe import measure_profile
    from services.training.prompts import PromptsInvalid, read_prompts

    with stderr_console().status("loading and probing the base"):
        try:
            target = load_target(model, adapters=adapters)
            head, head_cid = _inside(model, target) if folder is None else _in_folder(folder, target)
            tokenizer, longest = Tokenizer(model), target.config.context_length - max_tokens
            read = [prompt for path in files for prompt in read_prompts([path], tokenizer, longest)[:limit]]
        except PromptsInvalid as error:
            raise UsageError(f"--prompts: {error}") from error
        except (TargetError, HeadError, HeadFolderInvalid, OSError) as error:
            raise UsageError(str(error)) from error
        prompts = tuple(prompt.tokens for prompt in read)
        return Loaded(target, head, head_cid, measure_profile(target).cid, prompts, max_tokens)


def _in_folder(folder: Path, target: CpuTarget) -> tuple[DraftHead, str]:
    """A head and its identifier. Raises HeadError, HeadFolderInvalid."""
    from services.generation.drafting.methods import load_head

    return load_head(folder, target.config), _manifest(folder, target.base_cid).cid


def _inside(model: Path, target: CpuTarget) -> tuple[DraftHead, str]:
    """The MTP block of a model, which drafts all tokens, or its assistant, and the identifier. Raises HeadError,
    UsageError.
    """
    from services.generation.drafting.mtp.assistant import read_assistant_beside
    from services.generation.drafting.mtp.block_weights import read_block

    found = read_assistant_beside(model, target.config) or read_block(model, target.config)
    if found is None:
        raise UsageError(f"{model}: the model comes with no MTP block", "name a folder or a reference")
    return found, found.cid


def _measured(on: Loaded) -> list[Scored]:
    """Scores for the bare base first, then for every adapter. Raises Failed."""
    adapted: list[tuple[str | None, str | None]] = [(None, None)]
    adapted += [(adapter.name, adapter.cid) for adapter in on.target.adapters]
    return [Scored(name, _score(on, name, cid)) for name, cid in adapted]


def _recorded(scored: Sequence[Scored], registry: RegistryClient, key: Signer) -> list[Scored]:
    """The scores with their places in the ledger, once they are signed and recorded. Raises KolmError."""
    kept = []
    for each in scored:
        envelope = sign_document(each.score, key).to_bytes()
        head = registry.record_kscore(envelope)
        index = next(score.ledger_index for score in head.kscores if score.envelope == envelope)
        kept.append(replace(each, ledger_index=index))
    return kept


def _manifest(folder: Path, base_cid: str) -> DraftHeadManifest:
    """The published manifest, which may have annotations, if the folder came from a registry; else a new one."""
    try:
        return DraftHeadManifest.from_bytes(DraftHeadEvidence.read(folder).manifest)
    except DraftHeadUnlogged:
        return manifest_of(folder, base_cid)


def _score(on: Loaded, name: str | None, adapter_cid: str | None) -> KScore:
    from services.training.kscore import DEPTH, prompts_digest

    found = _measure(on, name or "the bare base", adapter_cid)
    return KScore(
        manifest_cid=on.head_cid,
        base_cid=on.target.base_cid,
        adapter_cid=adapter_cid,
        profile_cid=on.profile_cid,
        k=DEPTH,
        prompts=found.prompts,
        prompts_digest=prompts_digest(on.prompts),
        tokens=found.tokens,
        mean_acceptance=found.mean_acceptance,
        mean_acceptance_length=found.mean_acceptance_length,
        acceptance_by_depth=found.acceptance_by_depth,
        threshold=THRESHOLD,
        status=kscore_status(found.mean_acceptance, THRESHOLD),
        measured_at=timestamp(datetime.now(UTC)),
    )


def _measure(on: Loaded, name: str, adapter_cid: str | None) -> Measured:
    from services.training.kscore import NothingMeasured, measure

    with bars() as progress:
        task = progress.add_task(name, total=len(on.prompts))

        def show(done: int) -> None:
            progress.update(task, completed=done)

        try:
            return measure(on.target, on.head, on.prompts, adapter_cid, max_tokens=on.max_tokens, progress=show)
        except NothingMeasured as error:
            raise Failed(f"{name}: {error}") from error


def _scores_view(scores: list[dict[str, Any]]) -> View:
    """One line for each adapter, the bare base first."""
    good, bad = Styled("good", "green"), Styled("needs retraining", "yellow")
    return table(
        scores,
        Column("adapter", lambda each: each["adapter"] or "none"),
        Column("accepted", lambda each: f"{each['mean_acceptance']:.2f}", right=True),
        Column("by depth", lambda each: " ".join(f"{share:.2f}" for share in each["acceptance_by_depth"])),
        Column("length", lambda each: f"{each['mean_acceptance_length']:.2f}", right=True),
        Column("", lambda each: good if each["status"] == "GOOD" else bad),
        Column("entry", "ledger_index", right=True),
    )
