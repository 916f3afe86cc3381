"""Makes `bundles/`: one bundle that is in order, and forgeries by exporters, operators and insiders.

    python -m tests.vectors.make_bundles

Keys, times and ids are fixed. `<name>.tar.gz` is the bundle, `expected.json` has the check that fails and why.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ledger.bundle.export import Export, export_bundle
from ledger.bundle.folder import add_file, archive
from ledger.bundle.layout import BundleFile, BundleManifest, ContentLine, OlderTree, Span, split_lines
from ledger.documents.audit import Verdict
from ledger.documents.content import Content
from ledger.documents.erasure import Erasure
from ledger.documents.key_entry import KeyEntry
from ledger.documents.manifests import DraftHeadManifest, HeadConfig, HeadWeights, NamedFile, Vocabulary
from ledger.documents.receipt import SpecDecode
from ledger.documents.signed_document import Document, kind_of, read_document, sign_document, sign_rotation
from ledger.encoding.text_forms import cid, encode_base64
from ledger.errors import NotFound
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import consistency_proof, leaf_hash, tree_root
from ledger.tree.multiproof import multi_proof
from ledger.tree.tile import TileEdge, TileHashes
from ledger.witness.cosignature import cosign
from ledger.witness.tlog_policy import Policy, PolicyGroup, PolicyLog, PolicyWitness
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    OFF,
    ORIGIN,
    STRANGER,
    TRUSTED,
    at,
    content,
    foreign_receipt,
    halt,
    key_entry,
    policy,
    publication,
    receipt,
    resume,
    signed,
    verdict,
)
from tests.vectors.make_log import AGAIN, chain

HERE = Path(__file__).parent / "bundles"
COSIGNED_AT = 1_767_324_245  # 20 minutes after the first document
WITNESS_KEYS = {name: seeded_key(name.encode().ljust(32), "witness") for name in ("a", "b", "c")}
WITNESSES = {name: VerifierKey(f"{name}.example/w", key.public, COSIGNATURE) for name, key in WITNESS_KEYS.items()}
POLICY = Policy(
    (PolicyLog(VerifierKey(ORIGIN, KEYS["log"].public)),),
    tuple(PolicyWitness(name, key) for name, key in WITNESSES.items()),
    (PolicyGroup("two-of-three", 2, ("a", "b", "c")),),
    "two-of-three",
)
SUCCESSOR = seeded_key(b"\x21" * 32, "receipts")
MANIFEST = DraftHeadManifest(
    subject=BASE,
    config=HeadConfig(NamedFile.of("config.json", b"config")),
    weights=HeadWeights((NamedFile.of("model.safetensors", b"weights"),)),
    hidden_size=64,
    feature_layers=(2, 4, 6),
    vocabulary=Vocabulary(512, 128),
)
WITH_HEAD = SpecDecode(
    method="eagle3",
    requested_method="auto",
    tokens_proposed=4,
    tokens_accepted=1,
    target_passes=1,
    head_cid=MANIFEST.cid,
    acceptance_rate=0.25,
    mean_acceptance_length=2.0,
)
ROTATION = sign_rotation(
    KeyEntry("receipts", SUCCESSOR.public, at(20), replaces=KEYS["receipts"].key_id), SUCCESSOR, KEYS["receipts"]
)

DOCUMENTS: tuple[Document | Envelope, ...] = (
    key_entry("receipts"),
    policy(rate=1.0, within_seconds=600),
    receipt(0),
    receipt(1),
    verdict(2, 0),
    verdict(3, 1, "DEVIATION"),
    halt(5),
    receipt(2, halt_epoch=1, spec_decode=OFF),
    resume(6),
    ROTATION,
    publication(MANIFEST.cid),
    sign_document(receipt(3, halt_epoch=1, spec_decode=WITH_HEAD), SUCCESSOR),
    verdict(7, 2),
    verdict(11, 3, "UNREPLAYABLE"),
)
CONTENTS = {2: 0, 3: 1, 7: 2}


class ListedLog:
    """A BundleSource over unchecked entries."""

    def __init__(self, entries: Sequence[bytes]) -> None:
        self.all = entries
        _, tiles = TileEdge().append(map(leaf_hash, entries))
        self._tiles = {(tile.level, tile.number): tile.hashes for tile in tiles}

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        return self.all[start : start + limit]

    def entry(self, index: int) -> bytes:
        return self.all[index]

    def entries_of(self, kinds: Iterable[str]) -> Sequence[tuple[int, bytes]]:
        documents = (read_document(Entry.from_bytes(data).envelope) for data in self.all)
        wanted = set(kinds)
        return [(index, self.all[index]) for index, document in enumerate(documents) if kind_of(document) in wanted]

    def about(self, start: int, end: int) -> Iterable[int]:
        documents = (read_document(Entry.from_bytes(data).envelope) for data in self.all)
        about = (
            (index, document) for index, document in enumerate(documents) if isinstance(document, Verdict | Erasure)
        )
        return [index for index, document in about if start <= document.receipt_index < end]

    def content(self, receipt_index: int) -> Content | None:
        return content(CONTENTS[receipt_index]) if receipt_index in CONTENTS else None

    def tile(self, level: int, number: int) -> bytes:
        if (level, number) not in self._tiles:
            raise NotFound(f"{level}/{number}")
        return self._tiles[level, number]


def write_folder(files: Iterable[BundleFile], folder: Path) -> None:
    for file in files:
        add_file(folder, file)


def log_of(changes: dict[int, Document | Envelope] | None = None, drop: int = 0) -> ListedLog:
    """The log, with some documents replaced by an insider who holds every key."""
    documents = [(changes or {}).get(index, document) for index, document in enumerate(DOCUMENTS)]
    kept = documents[: len(documents) - drop]
    return ListedLog(chain(one if isinstance(one, Envelope) else Envelope.from_bytes(signed(one)) for one in kept))


def checkpoint(log: ListedLog, size: int, cosigners: str = "ab", key: SigningKey = KEYS["log"]) -> bytes:
    """The signed checkpoint over the first `size` entries, cosigned."""
    head = Checkpoint(ORIGIN, size, tree_root(size, TileHashes(log)))
    note = Note.from_bytes(sign_checkpoint(head, key))
    lines = tuple(cosign(note.text, WITNESSES[name].name, WITNESS_KEYS[name], COSIGNED_AT) for name in cosigners)
    return replace(note, signatures=note.signatures + lines).to_bytes()


def exported(log: ListedLog, **changes: object) -> dict[str, bytes]:
    """The files of a bundle of the whole log."""
    size = len(log.all)
    wanted = Export(
        checkpoint=checkpoint(log, size),
        start=0,
        end=size,
        exported_at=at(900),
        earlier=(checkpoint(log, 4),),
        sizes=(7,),
        with_content=True,
        draft_heads={MANIFEST.cid.rpartition(":")[2]: MANIFEST.to_bytes()},
        policy=POLICY.to_bytes(),
        keys=TRUSTED.by_role,
    )
    return {file.path: file.data for file in export_bundle(log, replace(wanted, **changes))}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Made:
    """A bundle's files, and the expected verification: `check` 0 is "all is well"."""

    files: dict[str, bytes] = field(repr=False)
    check: int = 0
    problem: str | None = None


ENTRIES = "entries/000000000000.jsonl"
CONTENT_FILE = "content/000000000000.jsonl"


@cache
def bundles() -> dict[str, Made]:
    log = log_of()
    good = exported(log)
    size = len(DOCUMENTS)

    def with_file(path: str, data: bytes) -> dict[str, bytes]:
        assert good.get(path) != data
        return good | {path: data}

    def edited(path: str, change: Callable[[bytes], bytes]) -> dict[str, bytes]:
        return with_file(path, change(good[path]))

    def insider(changes: dict[int, Document | Envelope], drop: int = 0) -> dict[str, bytes]:
        return exported(log_of(changes, drop))

    def left_out(index: int) -> dict[str, bytes]:
        """Everything but one entry, with a proof that holds, by an exporter who claims that nothing is missing."""
        some = tuple(place for place in range(size) if place != index)
        files = exported(log, start=0, end=0, indexes=some, with_content=False)
        manifest = BundleManifest.from_bytes(files["bundle.json"])
        return files | {"bundle.json": replace(manifest, range=Span(manifest.range.start, size)).to_bytes()}

    tree = OlderTree.from_bytes(split_lines(good["trees.jsonl"], "")[1])
    elsewhere = log_of({3: receipt(1, tenant="somebody else")})
    forked = OlderTree(
        4,
        tree_root(4, TileHashes(log)),
        tuple(consistency_proof(4, size, TileHashes(log))),
        checkpoint(elsewhere, 4).decode(),
    )
    by_old_key = Envelope.from_bytes(signed(receipt(3, halt_epoch=1, spec_decode=WITH_HEAD)))
    by_successor = sign_document(receipt(1), SUCCESSOR)
    manifest = BundleManifest.from_bytes(good["bundle.json"])
    wrong_content = ContentLine.of(2, content(1)).to_bytes() + b"\n"
    return {
        "good": Made(good),
        "chosen_receipts": Made(exported(log, start=0, end=0, indexes=(3,), earlier=(), sizes=(), with_content=False)),
        "range": Made(exported(log, start=2, end=6)),
        "manifest_missing": Made({p: d for p, d in good.items() if p != "bundle.json"}, 1, "cannot read bundle.json"),
        "manifest_of_another_tree": Made(
            with_file("bundle.json", replace(manifest, tree_size=99).to_bytes()), 1, "another tree"
        ),
        "manifest_beyond_the_tree": Made(
            edited("bundle.json", lambda data: data.replace(b'"start":0', b'"start":99')), 1, "start <= end"
        ),
        "trees_out_of_order": Made(
            edited("trees.jsonl", lambda data: b"".join(reversed(data.splitlines(keepends=True)))), 1, "rising sizes"
        ),
        "checkpoint_by_a_stranger": Made(
            exported(log, checkpoint=checkpoint(log, size, key=STRANGER)), 2, "no signature by a trusted key"
        ),
        "checkpoint_of_another_log": Made(
            {p: d.replace(ORIGIN.encode(), b"x.example/log") for p, d in good.items()}, 2, "knows no log x.example/log"
        ),
        "cosigned_by_one": Made(exported(log, checkpoint=checkpoint(log, size, "a")), 3, "quorum 'two-of-three'"),
        "cosigned_by_one_twice": Made(exported(log, checkpoint=checkpoint(log, size, "aa")), 3, "requires the quorum"),
        "cosignature_of_another_tree": Made(
            with_file("checkpoint", _moved_cosignature(good["checkpoint"], checkpoint(log, 4))), 3, "not one by"
        ),
        "older_root_edited": Made(
            with_file("trees.jsonl", replace(tree, root=leaf_hash(b"x"), checkpoint=None).to_bytes() + b"\n"),
            4,
            "does not contain the tree of 7",
        ),
        "older_checkpoint_of_a_fork": Made(
            with_file("trees.jsonl", forked.to_bytes() + b"\n"), 4, "signed two different trees of 4"
        ),
        "payload_edited": Made(edited(ENTRIES, lambda data: _swapped(data, 3)), 5, "leads to another root"),
        "entry_not_canonical": Made(
            edited(ENTRIES, lambda data: data.replace(b'"index":3', b'"index": 3')), 5, "not in canonical form"
        ),
        "entry_twice": Made(
            edited(ENTRIES, lambda data: data + data.splitlines(keepends=True)[-1]), 5, "comes after entry 13"
        ),
        "entry_removed": Made(
            edited(ENTRIES, lambda data: b"".join(data.splitlines(keepends=True)[:-1])), 5, "too short"
        ),
        "entry_left_out_with_proof": Made(left_out(7), 6, "entry 7 of [0, 14) is missing"),
        "signed_by_a_stranger": Made(
            insider({3: sign_document(receipt(1), STRANGER)}), 7, "entry 3: signatures[0] is by"
        ),
        "signed_by_a_replaced_key": Made(insider({11: by_old_key}), 7, "entry 11: is signed by"),
        "signed_by_a_key_to_come": Made(insider({3: by_successor}), 7, "entry 3: signatures[0] is by"),
        "receipt_twice": Made(
            insider({7: receipt(1, halt_epoch=1, spec_decode=OFF), 12: verdict(7, 1)}),
            8,
            "entry 7: is a second receipt",
        ),
        "verdict_on_another_receipt": Made(insider({4: verdict(3, 0)}), 8, "entry 4: receipt_index"),
        "another_engine": Made(insider({3: foreign_receipt(1), 5: verdict(3, 1, "DEVIATION", **AGAIN)})),
        "verdict_of_another_strength": Made(insider({3: foreign_receipt(1)}), 8, "entry 5: outcome"),
        "halt_left_out_of_a_choice": Made(
            _without(exported(log, start=6, end=8, earlier=(), sizes=(), with_content=False), log, 6), 8, "halt_epoch"
        ),
        "served_in_a_halted_scope": Made(
            insider({7: receipt(2, halt_epoch=1)}), 9, "entry 7: was served in a scope that entry 6 had halted"
        ),
        "replay_missing": Made(insider({}, drop=1), 10, "entry 11: has no verdict"),
        "content_of_another_receipt": Made(with_file(CONTENT_FILE, wrong_content), 11, "entry 2"),
        "content_for_a_verdict": Made(
            with_file(CONTENT_FILE, ContentLine.of(4, content(0)).to_bytes() + b"\n"), 11, "entry 4: is not a receipt"
        ),
        "manifest_of_another_head": Made(
            with_file(f"heads/{'0' * 64}.json", MANIFEST.to_bytes()), 12, "manifest of another head"
        ),
        "head_on_another_base": Made(
            insider({10: publication(MANIFEST.cid, base_cid=cid(b"other base"))}), 12, "was published for"
        ),
    }


def _swapped(data: bytes, line: int) -> bytes:
    """One entry's envelope replaced by another receipt's, properly signed."""
    lines = split_lines(data, "")
    entry = Entry.from_bytes(lines[line])
    lines[line] = replace(entry, envelope=Envelope.from_bytes(signed(receipt(1, tenant="other")))).to_bytes()
    return b"".join(each + b"\n" for each in lines)


def _moved_cosignature(onto: bytes, of: bytes) -> bytes:
    note, other = Note.from_bytes(onto), Note.from_bytes(of)
    return replace(note, signatures=(note.signatures[0], *other.signatures[1:])).to_bytes()


def _without(files: dict[str, bytes], log: ListedLog, index: int) -> dict[str, bytes]:
    """A choice of receipts from which an exporter keeps back one of the entries that the format asks for."""
    kept = [Entry.from_bytes(line).index for line in split_lines(files[ENTRIES], "")]
    lines = [log.all[place] for place in kept if place != index]
    proof = multi_proof([place for place in kept if place != index], len(log.all), TileHashes(log))
    manifest = BundleManifest.from_bytes(files["bundle.json"])
    return files | {
        "bundle.json": replace(manifest, range=Span(0, 0), entries=len(lines)).to_bytes(),
        "proof": b"".join(encode_base64(node).encode() + b"\n" for node in proof),
        ENTRIES: b"".join(line + b"\n" for line in lines),
    }


def expected() -> bytes:
    """The result of verification that each must have."""
    known = {name: {"check": made.check, "problem": made.problem} for name, made in bundles().items()}
    return json.dumps(known, indent=2).encode() + b"\n"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    (HERE / "expected.json").write_bytes(expected())
    (HERE / "policy").write_bytes(POLICY.to_bytes())
    for name, made in bundles().items():
        files = (BundleFile(path, data) for path, data in made.files.items())
        (HERE / f"{name}.tar.gz").write_bytes(b"".join(archive(files)))


if __name__ == "__main__":
    main()
