import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ledger.audit.log_verification import verify_log
from ledger.audit.seen import SeenOnDisk
from ledger.bundle import layout
from ledger.bundle.checks import BundleChecks
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.folder import BundleFolder, open_bundle
from ledger.bundle.layout import (
    _BOUNDS,
    BundleFile,
    BundleManifest,
    ContentLine,
    OlderTree,
    Span,
    bound_of,
    read_hashes,
    split_lines,
)
from ledger.bundle.report import NOT_REACHED, BundleReport, NotReached, Trust
from ledger.bundle.verification import CHECKS, verify_bundle
from ledger.documents.audit import Verdict
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import cid, encode_base64
from ledger.errors import BundleTooLarge, FormatError, LedgerError, NotFound, ProofError, StoreError
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import EMPTY_ROOT
from ledger.tree.multiproof import multi_proof
from ledger.tree.tile import TileHashes
from ledger.witness.tlog_policy import Policy
from tests.examples import VECTORS, examples
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
    erasure,
    expiry,
    foreign_receipt,
    of_a_later_version,
    publication,
    receipt,
    resume,
    retention,
    verdict,
)
from tests.vectors.make_bundles import (
    DOCUMENTS,
    MANIFEST,
    POLICY,
    SUCCESSOR,
    WITH_HEAD,
    ListedLog,
    bundles,
    checkpoint,
    expected,
    exported,
    log_of,
    write_folder,
)
from tests.vectors.make_log import signed_claim

FOLDER = VECTORS / "bundles"
EXPECTED = json.loads((FOLDER / "expected.json").read_bytes())
TRUST = Trust(TRUSTED, Policy.from_bytes((FOLDER / "policy").read_bytes()))
GOOD = bundles()["good"].files


def judged(files: dict[str, bytes], folder: Path, trust: Trust = TRUST) -> BundleReport:
    write_folder((BundleFile(path, data) for path, data in files.items()), folder)
    return verify_bundle(BundleFolder(folder), trust)


def failed(report: BundleReport) -> int:
    """The number of the first check that failed, 0 if none did."""
    return next((check.number for check in report.checks if check.passed is False), 0)


@pytest.mark.parametrize("part", ["entries/", "content/"])
def test_a_disk_that_fails_is_no_fault_of_the_bundle(part: str, tmp_path: Path) -> None:
    write_folder((BundleFile(path, data) for path, data in GOOD.items()), tmp_path / "bundle")

    class Failing(BundleFolder):
        def read(self, path: str) -> bytes:
            if path.startswith(part):
                raise StoreError("input/output error")
            return super().read(path)

    with pytest.raises(StoreError):
        verify_bundle(Failing(tmp_path / "bundle"), TRUST)


def test_content_beside_no_entries_is_a_malformed_bundle(tmp_path: Path) -> None:
    assert failed(judged(GOOD | {"content/000000000999.jsonl": b"{}\n"}, tmp_path)) == 1


def test_every_temporary_database_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SeenOnDisk] = []
    opened, close = SeenOnDisk.__init__, SeenOnDisk.close

    def noted(seen: SeenOnDisk) -> None:
        made.append(seen)
        opened(seen)

    def forgotten(seen: SeenOnDisk) -> None:
        made.remove(seen)
        close(seen)

    monkeypatch.setattr(SeenOnDisk, "__init__", noted)
    monkeypatch.setattr(SeenOnDisk, "close", forgotten)
    assert judged(GOOD, tmp_path).ok
    assert verify_log(log_of().all, None, TRUSTED).ok
    assert made == []


def test_the_files_are_what_the_code_makes_of_them() -> None:
    assert (FOLDER / "expected.json").read_bytes() == expected()
    assert {path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz")} == set(bundles())
    for name, made in bundles().items():
        with open_bundle(FOLDER / f"{name}.tar.gz") as kept:
            assert set(kept.paths()) == set(made.files), name
            assert all((kept.folder / path).read_bytes() == data for path, data in made.files.items()), name


@pytest.mark.parametrize("name", EXPECTED)
def test_each_bundle_is_judged_as_expected(name: str) -> None:
    with open_bundle(FOLDER / f"{name}.tar.gz") as bundle:
        report = verify_bundle(bundle, TRUST)
    assert failed(report) == EXPECTED[name]["check"], report.problem
    assert (report.problem is None) == report.ok == (EXPECTED[name]["problem"] is None)
    assert (EXPECTED[name]["problem"] or "") in (report.problem or "")
    assert [check.number for check in report.checks] == list(range(1, len(CHECKS) + 1))


def test_a_folder_with_an_unknown_file_is_no_bundle(tmp_path: Path) -> None:
    report = judged(GOOD | {"readme": b"hello"}, tmp_path / "bundle")
    assert (failed(report), report.problem) == (1, "bundle: 'readme' is not a file of a bundle")


def test_a_bundle_that_is_in_order_passes_every_check_that_it_gives_work_to() -> None:
    with open_bundle(FOLDER / "good.tar.gz") as bundle:
        report = verify_bundle(bundle, TRUST)
    assert [check.number for check in report.checks if check.passed is not True] == [13, 14, 15, 16]
    assert report.manifest is not None
    assert (report.manifest.range.start, report.manifest.range.end) == (0, len(DOCUMENTS))
    assert dict(report.outcomes) == {"EXACT": 2, "DEVIATION": 1, "UNREPLAYABLE": 1}
    assert set(report.cosigned) == {"a", "b"}
    assert report.unproven == 0


def test_trust_comes_from_the_verifier_alone(tmp_path: Path) -> None:
    strangers = TrustedKeys.of(*(seeded_key(role.encode().ljust(32), role) for role in TRUSTED.by_role))
    assert failed(judged(GOOD, tmp_path / "keys", Trust(strangers, POLICY))) == 7
    assert failed(judged(GOOD, tmp_path / "log", Trust(strangers))) == 2
    assert failed(judged(GOOD, tmp_path / "none", Trust(TRUSTED))) == 0


def test_the_bundle_must_extend_what_the_verifier_has_seen(tmp_path: Path) -> None:
    log = log_of()
    for size in (0, 1, 3, 4, 7, 13, 14):
        trust = replace(TRUST, earlier=(checkpoint(log, size, ""),))
        assert judged(GOOD, tmp_path / str(size), trust).ok
    rewritten = exported(log_of({13: DOCUMENTS[0]}), earlier=(), sizes=())
    report = judged(rewritten, tmp_path / "rewritten", replace(TRUST, earlier=(checkpoint(log, 14),)))
    assert failed(report) == 4
    chosen = bundles()["chosen_receipts"].files
    report = judged(chosen, tmp_path / "chosen", replace(TRUST, earlier=(checkpoint(log, 4),)))
    assert failed(report) == 4


def chosen_by_a_liar(indexes: list[int], log: ListedLog) -> dict[str, bytes]:
    """A bundle of exactly these entries, whatever an honest exporter would put beside them."""
    size = len(log.all)
    return {
        "bundle.json": BundleManifest(ORIGIN, size, Span(0, 0), len(indexes), at(900)).to_bytes(),
        "checkpoint": checkpoint(log, size),
        "proof": b"".join(encode_base64(node).encode() + b"\n" for node in multi_proof(indexes, size, TileHashes(log))),
        "trees.jsonl": b"",
        f"entries/{indexes[0]:012d}.jsonl": b"".join(log.all[index] + b"\n" for index in indexes),
    }


def test_a_choice_is_not_told_to_be_free_of_what_it_may_leave_out(tmp_path: Path) -> None:
    report = judged(chosen_by_a_liar([2, 3], log_of()), tmp_path / "chosen")
    assert report.ok
    assert [(report.checks[at].passed, report.checks[at].detail == NOT_REACHED) for at in (5, 8)] == 2 * [(None, False)]
    report = judged(exported(log_of(), start=2, end=9), tmp_path / "range")
    assert [report.checks[at].passed for at in (5, 8)] == [True, None]
    report = judged(exported(log_of(), start=0, end=9), tmp_path / "from-the-first")
    assert (report.checks[8].passed, report.halts.epoch, len(report.halts.open)) == (True, 1, 0)


def test_a_kind_of_a_later_version_is_carried_and_counted(tmp_path: Path) -> None:
    log = log_of({10: Envelope.from_bytes(of_a_later_version(KEYS["log"]))})
    report = judged(exported(log), tmp_path / "whole")
    assert (failed(report), report.kinds["unknown"]) == (0, 1)
    report = judged(exported(log, start=0, end=0, indexes=(9,)), tmp_path / "chosen")
    assert failed(report) == 0
    assert "unknown" not in report.kinds  # it may be about others
    log = log_of({10: Envelope.from_bytes(of_a_later_version(STRANGER))})
    assert failed(judged(exported(log), tmp_path / "stranger")) == 7


def test_receipts_of_an_unproven_profile_are_counted(tmp_path: Path) -> None:
    unproven = {index: receipt(90 + index, profile_proven=index != 1, spec_decode=OFF) for index in (1, 2)}
    report = judged(chosen_by_a_liar([1, 2], log_of(unproven)), tmp_path / "unproven")
    assert (report.ok, report.unproven) == (True, 1), report.problem


def test_impossible_speedups_are_counted_and_fail_nothing(tmp_path: Path) -> None:
    block = replace(receipt().spec_decode, speedup_basis="calibrated")  # two tokens in one pass
    claims = {1: replace(block, wall_clock_speedup=2.5), 2: replace(block, wall_clock_speedup=1.5)}
    boasting = {index: receipt(90 + index, spec_decode=claim) for index, claim in claims.items()}
    report = judged(chosen_by_a_liar([1, 2], log_of(boasting)), tmp_path / "boasting")
    assert (report.ok, report.overclaims) == (True, 1), report.problem


def test_an_exact_verdict_on_a_receipt_elsewhere_is_none_on_those_that_are_here(tmp_path: Path) -> None:
    report = judged(chosen_by_a_liar([3, 4], log_of()), tmp_path / "another")  # 4 judges 2, and 5 judges 3
    assert (report.ok, dict(report.outcomes)) == (True, {})
    report = judged(chosen_by_a_liar([3, 4, 5], log_of()), tmp_path / "both")
    assert (report.ok, dict(report.outcomes)) == (True, {"DEVIATION": 1})
    report = judged(chosen_by_a_liar([2, 4], log_of()), tmp_path / "its-own")
    assert (report.ok, dict(report.outcomes)) == (True, {"EXACT": 1})


@pytest.mark.parametrize(("by", "independent"), [("auditor", 1), ("server", 0), (None, 0)])
def test_a_report_counts_exact_verdicts_of_independent_replays(
    tmp_path: Path, by: str | None, independent: int
) -> None:
    named = {"verification": None if by is None else "prefill", "replayed_by": by}
    place, old = next((i, d) for i, d in enumerate(DOCUMENTS) if isinstance(d, Verdict) and d.outcome == "EXACT")
    report = judged(exported(log_of({place: replace(old, **named)})), tmp_path / "bundle")  # type: ignore[arg-type]
    assert report.ok, report.problem
    assert (report.outcomes["EXACT"], report.independent) == (2, independent)


def test_a_verdict_stands_after_its_receipt_in_a_choice_too(tmp_path: Path) -> None:
    report = judged(chosen_by_a_liar([2, 4], log_of({4: verdict(7, 2)})), tmp_path / "before")
    assert failed(report) == 8


@pytest.mark.parametrize("wrong", [11, 12])
def test_a_receipt_of_a_head_on_another_base_is_found_whichever_receipt_is_first(wrong: int, tmp_path: Path) -> None:
    bases = {index: cid(b"another base") if index == wrong else BASE for index in (11, 12)}
    served = {
        index: sign_document(receipt(index, halt_epoch=1, spec_decode=WITH_HEAD, base_cid=base), SUCCESSOR)
        for index, base in bases.items()
    }
    report = judged(exported(log_of({**served, 13: verdict(7, 2)})), tmp_path / "bundle")
    assert (report.checks[7].passed, report.checks[11].passed) == (True, False), report.problem


def test_a_head_that_was_published_for_two_bases_is_found(tmp_path: Path) -> None:
    other = cid(b"another base")
    served = sign_document(receipt(3, halt_epoch=1, spec_decode=WITH_HEAD, base_cid=other), SUCCESSOR)
    log = log_of({11: publication(MANIFEST.cid, base_cid=other), 12: served, 13: verdict(7, 2)})
    report = judged(exported(log, draft_heads={}), tmp_path / "bundle")
    assert (report.checks[7].passed, report.checks[11].passed) == (True, False), report.problem


def test_owed_replays_are_counted_when_the_verifier_says(tmp_path: Path) -> None:
    files = exported(log_of(drop=1), checkpoint=checkpoint(log_of(), 13, ""))
    trust = Trust(TRUSTED)
    assert judged(files, tmp_path / "by-the-log-itself", trust).ok
    late = replace(trust, as_of=datetime(2027, 1, 1, tzinfo=UTC))
    report = judged(files, tmp_path / "later", late)
    assert (failed(report), report.completeness and len(report.completeness.overdue) > 0) == (10, True)


@pytest.mark.parametrize(("allowed", "check"), [(0, 14), (1, 0), (None, 0)])
def test_receipts_that_could_not_be_replayed_are_no_pass(tmp_path: Path, allowed: int | None, check: int) -> None:
    report = judged(GOOD, tmp_path / "bundle", replace(TRUST, max_unreplayable=allowed))
    assert (failed(report), len(report.unreplayable)) == (check, 1), report.problem
    chosen = judged(chosen_by_a_liar([2, 4], log_of()), tmp_path / "chosen", replace(TRUST, max_unreplayable=allowed))
    assert (failed(chosen), len(chosen.unreplayable)) == (0, 0), chosen.problem


@pytest.mark.parametrize(
    ("outcome", "by", "own"),
    [
        ("EXACT", {"verification": "decode", "replayed_by": "auditor"}, True),
        ("SAME", {"verification": "again", "replayed_by": "engine"}, False),
        ("UNCHECKED", {"reason": "no means"}, False),
        ("UNREPLAYABLE", {}, None),
    ],
)
def test_a_verdict_of_one_strength_is_none_on_a_receipt_of_the_other(
    outcome: str, by: dict[str, str], own: bool | None, tmp_path: Path
) -> None:
    for foreign in (True, False):
        document = foreign_receipt(1) if foreign else receipt(1)
        log = log_of({3: document, 12: verdict(3, 1, outcome, **by)})
        report = judged(chosen_by_a_liar([3, 12], log), tmp_path / str(foreign))
        assert failed(report) == (8 if own is foreign else 0), report.problem


def test_the_newest_verdict_says_whether_a_receipt_could_be_replayed(tmp_path: Path) -> None:
    log = log_of({12: verdict(3, 1, "UNREPLAYABLE"), 13: verdict(3, 1)})
    for held, unreplayable in (([3, 12], 1), ([3, 12, 13], 0)):
        files = chosen_by_a_liar(held, log)
        report = judged(files, tmp_path / str(len(held)), replace(TRUST, max_unreplayable=0))
        assert (failed(report), len(report.unreplayable)) == (14 if unreplayable else 0, unreplayable), report.problem


def test_a_replay_that_an_erasure_made_impossible_is_no_pass_and_names_the_erasure(tmp_path: Path) -> None:
    strict = replace(TRUST, max_unreplayable=0)
    before = log_of({10: erasure(3, 1), 11: erasure(3, 1), 12: verdict(3, 1, "UNREPLAYABLE")})
    report = judged(chosen_by_a_liar([3, 10, 11, 12], before), tmp_path / "before", strict)
    assert (failed(report), dict(report.unreplayable)) == (14, {3: 10})
    after = log_of({11: verdict(3, 1, "UNREPLAYABLE"), 12: erasure(3, 1)})
    report = judged(chosen_by_a_liar([3, 11, 12], after), tmp_path / "after", strict)
    assert (failed(report), dict(report.unreplayable)) == (14, {3: None})
    policies = log_of(
        {
            10: retention(1, "acme"),
            11: expiry(10, 11, 1, tenant="acme", issued_before=at(2), issued_at=at(86_402)),
            12: verdict(3, 1, "UNREPLAYABLE"),
        }
    )
    report = judged(
        chosen_by_a_liar([3, 10, 11, 12], policies), tmp_path / "policy", replace(strict, max_unreplayable=1)
    )
    assert (failed(report), dict(report.unreplayable)) == (0, {3: 11}), report.problem


def test_a_log_is_as_old_as_its_witnesses_say_and_not_as_it_says_itself(tmp_path: Path) -> None:
    (tmp_path / "cosigned").mkdir()
    seen = max(judged(GOOD, tmp_path / "first").cosigned.values())
    alone = exported(log_of(), checkpoint=checkpoint(log_of(), 14, ""))
    for seconds, check in ((1800, 0), (3600, 0), (3661, 15)):
        now = datetime.fromtimestamp(seen + seconds, UTC)
        young = replace(TRUST, now=now, max_age=timedelta(hours=1))
        report = judged(GOOD, tmp_path / f"cosigned/{seconds}", young)
        assert failed(report) == check, report.problem
        report = judged(alone, tmp_path / f"alone-{seconds}", Trust(TRUSTED, now=now, max_age=timedelta(hours=1)))
        assert (failed(report), report.freshness and report.freshness.age) == (15, None)


def test_a_bundle_of_chosen_receipts_reads_no_verdict_on_another_receipt() -> None:
    class Watched(ListedLog):
        def entries_of(self, kinds: Iterable[str]) -> Sequence[tuple[int, bytes]]:
            assert {"receipt", "verdict", "erasure"}.isdisjoint(kinds)
            return super().entries_of(kinds)

    read = exported(Watched(log_of().all), start=0, end=0, indexes=(3,))
    assert read == exported(log_of(), start=0, end=0, indexes=(3,))


def test_a_bundle_of_no_entries_is_of_the_one_empty_tree(tmp_path: Path) -> None:
    for root, check in ((EMPTY_ROOT, 0), (bytes(32), 5)):
        note = sign_checkpoint(Checkpoint(ORIGIN, 0, root), KEYS["log"])
        wanted = Export(checkpoint=note, start=0, end=0, exported_at=at(900))
        files = {file.path: file.data for file in export_bundle(ListedLog([]), wanted)}
        report = judged(files, tmp_path / root.hex(), Trust(TRUSTED))
        assert failed(report) == check, report.problem


def test_a_resume_counts_between_its_halt_and_the_receipts_that_have_seen_it(tmp_path: Path) -> None:
    early, late = replace(resume(6), issued_at=at(199)), replace(resume(6), issued_at="2031-01-01T00:00:00.000Z")
    report = judged(exported(log_of({8: early})), tmp_path / "early")
    assert (failed(report), report.dated_ahead.count) == (0, 0)
    witnessed = judged(exported(log_of({8: late})), tmp_path / "late")
    assert (failed(witnessed), witnessed.dated_ahead.first) == (0, (8,))
    alone = exported(log_of({8: late}), checkpoint=checkpoint(log_of({8: late}), len(DOCUMENTS), ""))
    for year, ahead in ((2030, (8,)), (2032, ())):
        trust = Trust(TRUSTED, now=datetime(year, 1, 1, tzinfo=UTC))
        report = judged(alone, tmp_path / str(year), trust)
        assert (failed(report), report.dated_ahead.first) == (0, ahead)


@pytest.mark.parametrize("bound", [
    {"MAX_FILES": 3}, {"MAX_TOTAL_BYTES": 20_000}, {"bound_of": lambda path: 100 if path == "proof" else 10**6},
])  # fmt: skip
def test_a_bundle_that_no_verifier_would_read_is_not_exported(
    monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]
) -> None:
    for name, value in bound.items():
        monkeypatch.setattr(layout, name, value)
    with pytest.raises(BundleTooLarge):
        exported(log_of(), start=3, end=6)


def test_a_log_whose_key_was_replaced_is_known_by_its_successor(tmp_path: Path) -> None:
    from ledger.documents.key_entry import KeyEntry
    from ledger.documents.signed_document import sign_rotation

    new = seeded_key(b"\x31" * 32, "log")
    rotation = sign_rotation(KeyEntry("log", new.public, at(9), replaces=KEYS["log"].key_id), new, KEYS["log"])
    log = log_of({10: rotation})
    for size, key, check in ((14, new, 0), (14, KEYS["log"], 2), (11, KEYS["log"], 0), (11, new, 0), (10, new, 4)):
        newest = checkpoint(log, 14, key=key if size == 14 else new)
        older = (checkpoint(log, size, key=key),) if size < 14 else ()
        report = judged(exported(log, checkpoint=newest, earlier=older), tmp_path / f"{size}-{key.key_id[-8:]}")
        assert failed(report) == check, report.problem


def test_a_folder_with_links_or_pipes_is_refused(tmp_path: Path) -> None:
    write_folder((BundleFile(path, data) for path, data in GOOD.items()), tmp_path / "bundle")
    target = tmp_path / "bundle/policy"
    target.unlink()
    os.symlink("/etc/passwd", target)
    report = verify_bundle(BundleFolder(tmp_path / "bundle"), TRUST)
    assert failed(report) == 1
    with pytest.raises(FormatError):
        BundleFolder(tmp_path / "bundle").read("policy")
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(FormatError):
        BundleFolder(tmp_path / "bundle").read("policy")
    target.unlink()
    target.write_bytes(b"x" * (bound_of("policy") + 1))
    with pytest.raises(FormatError):
        BundleFolder(tmp_path / "bundle").read("policy")


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound), open_bundle(tmp_path / "none"):
        pass
    with pytest.raises(ProofError):
        list(export_bundle(log_of(), Export(checkpoint(log_of(), 5), 3, 6, at(0))))


def test_contents_beyond_the_bound_of_a_file_go_into_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(map(len, GOOD["content/000000000000.jsonl"].splitlines(keepends=True)))
    bounds = [(pattern, longest if pattern.match("content/000000000000.jsonl") else most) for pattern, most in _BOUNDS]
    monkeypatch.setattr("ledger.bundle.layout._BOUNDS", bounds)
    files = exported(log_of())
    assert [int(path[8:20]) for path in files if path.startswith("content/")] == [0, 3, 7]
    report = judged(files, tmp_path / "bundle")
    assert (failed(report), report.checks[10].detail) == (0, "content of 3 receipts matches"), report.problem
    bounds[:] = [(pattern, 9) for pattern, _ in bounds]
    with pytest.raises(FormatError):
        exported(log_of())


NO_NOTE = checkpoint(log_of(), 1, "")
JUNK_FILES = st.sampled_from(sorted(GOOD))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=JUNK_FILES, where=st.integers(0, 10**6), cut=st.integers(0, 3), junk=st.binary(max_size=4))
@example(path="trees.jsonl", where=331, cut=1, junk=b"")  # a cosignature of an older checkpoint by no known witness
def test_no_change_of_any_byte_escapes_the_report(
    path: str, where: int, cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = GOOD[path]
    place = where % (len(data) + 1)
    changed = data[:place] + junk + data[place + cut :]
    report = judged(GOOD | {path: changed}, tmp_path_factory.mktemp("bundle") / "b")
    claims = path.startswith("keys/") or path == "policy"  # claims of the exporter, which are not believed
    counted = path == "bundle.json" and report.ok and BundleManifest.from_bytes(changed).entries == len(DOCUMENTS)
    lines = path == "trees.jsonl" and report.ok and trees_of(changed) == trees_of(data)
    assert report.ok == (changed == data) or claims or counted or lines


def test_a_receipt_that_is_dated_ahead_does_not_put_off_its_replay(tmp_path: Path) -> None:
    ahead = receipt(0, issued_at="2036-01-02T03:04:05.000Z")
    own = datetime(2026, 1, 2, 5, tzinfo=UTC)
    for name, trust in {"witnesses": TRUST, "own clock": Trust(TRUSTED, now=own, as_of=own)}.items():
        report = judged(exported(log_of({2: ahead})), tmp_path / name, trust)
        assert (failed(report), report.dated_ahead.first) == (0, (2,)), report.problem
        unjudged = exported(log_of({2: ahead, 4: receipt(40)}))
        report = judged(unjudged, tmp_path / f"unjudged-{name}", replace(trust, as_of=own))
        assert report.completeness is not None
        assert (failed(report), report.completeness.overdue[0].due_by) == (10, at(601))  # by the receipt after it


def test_an_auditor_that_says_the_opposite_of_itself_fails_a_check_of_its_own(tmp_path: Path) -> None:
    for place, document in ((12, verdict(3, 1)), (12, verdict(2, 0, "DEVIATION"))):
        report = judged(exported(log_of({place: document})), tmp_path / str(document.outcome))
        assert [check.number for check in report.checks if check.passed is False and check.number != 10] == [17]
        assert [(each.index, each.receipt_index) for each in report.contradictions] == [(12, document.receipt_index)]


@pytest.mark.parametrize(
    "claims",
    [{"method": "off", "passes_by_method": {"eagle3": 1}}, {"tokens_accepted": 2}, {"acceptance_rate": 0.99}],
    ids=lambda claims: next(iter(claims)),
)
def test_a_receipt_that_contradicts_itself_is_no_pass_though_its_operator_signed_and_logged_it(
    claims: dict[str, object], tmp_path: Path
) -> None:
    index = next(number for number, document in enumerate(DOCUMENTS) if document == receipt(0))
    report = judged(exported(log_of({index: signed_claim(0, **claims)})), tmp_path / "b")
    assert not report.ok
    assert "spec_decode" in (report.problem or "")


ENTRIES = "entries/000000000000.jsonl"
LINES = GOOD[ENTRIES].splitlines(keepends=True)


@pytest.mark.parametrize(
    "lines",
    [
        LINES[1:], LINES[:-1], [LINES[1], LINES[0], *LINES[2:]], [*LINES, LINES[-1]], LINES[::-1], [b"\n", *LINES],
        [*LINES[:-1], LINES[-1].rstrip(b"\n")], [b"garbage\n"], [b"\n"], [], [b"\xff" * 9], LINES[3:4],
    ],
    ids=["first gone", "last gone", "swapped", "doubled", "reversed", "blank", "no end", "junk", "empty", "nothing",
         "bytes", "one"],
)  # fmt: skip
def test_entries_in_another_form_or_order_fail_the_check_of_the_entries(lines: list[bytes], tmp_path: Path) -> None:
    report = judged(GOOD | {ENTRIES: b"".join(lines)}, tmp_path / "b")
    assert (report.ok, failed(report)) == (False, 5), report.problem


def test_a_check_that_was_not_reached_is_no_pass_even_where_none_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(_: BundleChecks) -> str:
        raise NotReached

    monkeypatch.setattr(BundleChecks, "_check_rules", unreached)
    report = judged(GOOD, tmp_path / "b")
    assert (report.ok, report.problem) == (False, "check 8 was not reached")


def trees_of(data: bytes) -> list[tuple[OlderTree, str]]:
    """Older trees without the names under their notes: whose line it is not is skipped, as signed notes want it."""
    trees = [OlderTree.from_bytes(line) for line in split_lines(data, "trees.jsonl")]
    return [
        (replace(tree, checkpoint=None), Note.from_bytes(tree.checkpoint.encode() if tree.checkpoint else NO_NOTE).text)
        for tree in trees
    ]


@given(st.binary(max_size=200) | st.sampled_from([b'{"size":1e400}', b"[" * 5000, b'{"size":1,"size":1}', b"\xff"]))
def test_junk_raises_the_one_family(data: bytes) -> None:
    for read in (
        BundleManifest.from_bytes,
        OlderTree.from_bytes,
        ContentLine.from_bytes,
        lambda junk: split_lines(junk, "lines"),
        lambda junk: read_hashes(junk, "proof"),
        lambda junk: bound_of(junk.decode("utf-8", "surrogateescape")),
    ):
        with contextlib.suppress(LedgerError):
            read(data)
