"""C2SP tlog-cosignature, tlog-policy and tlog-proof; how old a log is, by a quorum's word."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.errors import FormatError, LedgerError, ProofError, SignatureError
from ledger.keys.note import COSIGNATURE, Note, NoteSignature, VerifierKey
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import leaf_hash, node_hash
from ledger.tree.tlog_proof import TlogProof
from ledger.witness.cosignature import cosign, cosigners, cosigning_time
from ledger.witness.freshness import Freshness, quorum_time
from ledger.witness.tlog_policy import Policy, PolicyGroup, PolicyLog, PolicyWitness
from tests.examples import VECTORS
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER

REAL = (VECTORS / "cosignature/arche2025h1_staging.note").read_bytes()
REAL_POLICY = (VECTORS / "cosignature/policy").read_bytes()
LEAVES = (leaf_hash(b"entry 0"), leaf_hash(b"entry 1"))
CHECKPOINT = Checkpoint(ORIGIN, 2, node_hash(*LEAVES))
SIGNED = sign_checkpoint(CHECKPOINT, KEYS["log"])
TEXT = CHECKPOINT.to_text()
WITNESS_KEYS = {name: seeded_key(name.encode().ljust(32), "witness") for name in ("a", "b", "c", "d")}
WITNESSES = {name: VerifierKey(f"{name}.example/w", key.public, COSIGNATURE) for name, key in WITNESS_KEYS.items()}


def cosigned(*names: str, seconds: int = 1_700_000_000) -> bytes:
    """The signed checkpoint with cosignatures by some witnesses."""
    note = Note.from_bytes(SIGNED)
    lines = tuple(cosign(TEXT, WITNESSES[name].name, WITNESS_KEYS[name], seconds) for name in names)
    return replace(note, signatures=note.signatures + lines).to_bytes()


def policy(groups: tuple[PolicyGroup, ...], quorum: str) -> Policy:
    log = PolicyLog(VerifierKey(ORIGIN, KEYS["log"].public), "https://ledger.example")
    witnesses = tuple(PolicyWitness(name, key) for name, key in WITNESSES.items())
    return Policy((log,), witnesses, groups, quorum)


TWO_OF_THREE = policy((PolicyGroup("group", 2, ("a", "b", "c")),), "group")
NESTED = policy((PolicyGroup("x", 2, ("a", "b")), PolicyGroup("x-or-d", 1, ("x", "d"))), "x-or-d")


def test_a_cosignature_by_an_independent_witness_holds() -> None:
    found = Policy.from_bytes(REAL_POLICY).open(REAL)
    assert (found.checkpoint.size, dict(found.cosigned)) == (1432088532, {"remora": 0x6A122120})


def test_the_key_ids_of_a_cosignature_are_those_of_other_peoples_tools() -> None:
    vkey = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
    assert VerifierKey.from_text(vkey).to_text() == vkey
    from_ed25519 = VerifierKey.from_text("TEST+7997405c+AQcC+FTVKf0jlTdHDY3rbevmnKxxPjigCXlVtGe6RIr6")
    assert VerifierKey.from_text(replace(from_ed25519, kind=COSIGNATURE).to_text()).key == from_ed25519.key


def test_a_cosignature_says_when_and_binds_the_time_and_the_text() -> None:
    line = cosign(TEXT, "a.example/w", WITNESS_KEYS["a"], 1679315147)
    assert len(line.signature) == 72
    assert cosigning_time(TEXT, line, WITNESSES["a"]) == 1679315147
    later = replace(line, signature=(1679315148).to_bytes(8, "big") + line.signature[8:])
    beyond = replace(line, signature=b"\xff" * 8 + line.signature[8:])
    for bad, text in ((later, TEXT), (beyond, TEXT), (line, TEXT + "x\n"), (replace(line, signature=b"x" * 64), TEXT)):
        with pytest.raises(SignatureError):
            cosigning_time(text, bad, WITNESSES["a"])
    for seconds in (-1, 2**63):
        with pytest.raises(FormatError):
            cosign(TEXT, "a.example/w", WITNESS_KEYS["a"], seconds)


def test_lines_of_strangers_are_skipped_and_a_bad_line_of_a_known_witness_condemns_the_note() -> None:
    note = Note.from_bytes(cosigned("a", "b"))
    assert set(cosigners(note, [WITNESSES["b"], WITNESSES["c"]])) == {WITNESSES["b"]}
    line = cosign(TEXT + "x\n", "a.example/w", WITNESS_KEYS["a"], 5)
    with pytest.raises(SignatureError):
        cosigners(replace(note, signatures=(*note.signatures, line)), [WITNESSES["a"]])


def test_a_log_signature_is_no_cosignature_and_the_other_way_round() -> None:
    same = VerifierKey(ORIGIN, KEYS["log"].public, COSIGNATURE)
    assert cosigners(Note.from_bytes(SIGNED), [same]) == {}
    only_cosigned = Note(TEXT, (cosign(TEXT, ORIGIN, KEYS["log"], 5),)).to_bytes()
    with pytest.raises(SignatureError):
        policy((), "none").open(only_cosigned)


@pytest.mark.parametrize(
    ("trust", "names", "enough"),
    [
        (policy((), "none"), "", True),
        (policy((), "a"), "bcd", False),
        (policy((), "a"), "a", True),
        (TWO_OF_THREE, "a", False),
        (TWO_OF_THREE, "ad", False),
        (TWO_OF_THREE, "bc", True),
        (NESTED, "a", False),
        (NESTED, "ab", True),
        (NESTED, "d", True),
    ],
)
def test_a_quorum_counts_as_the_policy_says(trust: Policy, names: str, enough: bool) -> None:
    assert Policy.from_bytes(trust.to_bytes()) == trust
    if enough:
        assert set(trust.open(cosigned(*names)).cosigned) == set(names)
    else:
        with pytest.raises(ProofError):
            trust.open(cosigned(*names))


def test_a_witness_that_signs_twice_counts_once() -> None:
    note = Note.from_bytes(cosigned("a"))
    again = cosign(TEXT, "a.example/w", WITNESS_KEYS["a"], 1_800_000_000)
    twice = replace(note, signatures=(*note.signatures, again)).to_bytes()
    with pytest.raises(ProofError):
        TWO_OF_THREE.open(twice)
    assert policy((), "a").open(twice).cosigned == {"a": 1_800_000_000}


def test_a_policy_accepts_its_logs_alone() -> None:
    for note in (sign_checkpoint(CHECKPOINT, STRANGER), sign_checkpoint(replace(CHECKPOINT, origin="x.y/z"), STRANGER)):
        with pytest.raises(SignatureError):
            policy((), "none").open(note)


def test_a_policy_reads_as_the_specification_writes_it() -> None:
    keys = {name: key.to_text() for name, key in WITNESSES.items()}
    text = (
        f"  # a comment\n\n\tlog {VerifierKey(ORIGIN, KEYS['log'].public).to_text()}   https://ledger.example  \n"
        + "".join(f"witness\t{name}  {key}\n" for name, key in keys.items())
        + "group two 2 a b c\ngroup every all two d\ngroup some any every\nquorum some\n"
    )
    parsed = Policy.from_bytes(text.encode())
    assert [(group.name, group.threshold) for group in parsed.groups] == [("two", 2), ("every", 2), ("some", 1)]
    assert parsed.logs[0].url == "https://ledger.example"
    assert parsed.is_met_by({"a", "c", "d"})
    assert not parsed.is_met_by({"a", "b", "c"})


W = WITNESSES["a"].to_text()
X = WITNESSES["b"].to_text()
L = VerifierKey(ORIGIN, KEYS["log"].public).to_text()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ("quorum a\n", 1),
        ("quorum none\nquorum none\n", 2),
        (f"witness a {W}\nwitness a {X}\nquorum a\n", 2),
        (f"witness none {W}\nquorum none\n", 1),
        (f"witness a {W}\nwitness b {W}\nquorum a\n", 2),
        (f"log {L}\nlog {L}\nquorum none\n", 2),
        (f"log {W}\nquorum none\n", 1),
        (f"witness a {L}\nquorum a\n", 1),
        (f"witness a {W}\ngroup g 2 a\nquorum g\n", 2),
        (f"witness a {W}\ngroup g 0 a\nquorum g\n", 2),
        (f"witness a {W}\ngroup g 01 a\nquorum g\n", 2),
        (f"witness a {W}\ngroup g any\nquorum g\n", 2),
        (f"witness a {W}\ngroup g any a a\nquorum g\n", 2),
        (f"witness a {W}\ngroup g any a\ngroup h any a g\nquorum h\n", 3),
        (f"group g any a\nwitness a {W}\nquorum g\n", 1),
        ("group g any g\nquorum g\n", 1),
        (f"witness a {W} http://x y\nquorum a\n", 1),
        ("witnes\nquorum none\n", 1),
        ("quorum none\r\n", 0),
        (f"log {L[:-4]}AAAA\nquorum none\n", 1),
        ("log x+00000000+AAAA\nquorum none\n", 1),
        ("#" * 70_000 + "\nquorum none\n", 0),
    ],
)
def test_a_policy_that_is_wrong_says_where(text: str, line: int) -> None:
    with pytest.raises(FormatError) as refused:
        Policy.from_bytes(text.encode())
    assert refused.value.field == (f"policy line {line}" if line else "policy")


def test_names_of_a_policy_are_opaque_bytes() -> None:
    latin = b"witness \xe9 " + W.encode() + b"\nquorum \xe9\n"
    assert Policy.from_bytes(latin).to_bytes() == latin
    assert Policy.from_bytes(latin).is_met_by({"\udce9"})


PROOF = TlogProof(1, (LEAVES[0],), cosigned("a", "b"), b"entry 1")


def test_a_proof_file_is_as_the_specification_writes_it() -> None:
    lines = PROOF.to_bytes().decode().split("\n")
    assert lines[:3] == ["c2sp.org/tlog-proof@v1", "extra ZW50cnkgMQ==", "index 1"]
    assert lines[4:6] == ["", ORIGIN]
    assert TlogProof.from_bytes(PROOF.to_bytes()) == PROOF
    bare = TlogProof(0, (), SIGNED)
    assert bare.to_bytes() == b"c2sp.org/tlog-proof@v1\nindex 0\n\n" + SIGNED
    assert TlogProof.from_bytes(bare.to_bytes()) == bare


def test_a_proof_file_shows_its_entry_and_no_other() -> None:
    read = TlogProof.from_bytes(PROOF.to_bytes())
    checkpoint = TWO_OF_THREE.open(read.checkpoint).checkpoint
    read.verify(b"entry 1", checkpoint)
    for proof, entry in ((read, b"entry 0"), (replace(read, index=0), b"entry 1"), (replace(read, hashes=()), b"x")):
        with pytest.raises(ProofError):
            proof.verify(entry, checkpoint)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"tlog-proof@v1", b"tlog-proof@v2"),
        (b"index 1", b"index 01"),
        (b"index 1", b"index -1"),
        (b"index 1\n", b""),
        (b"extra ZW50cnkgMQ==", b"extra ZW50cnkgMQ"),
        (b"extra ZW50cnkgMQ==\nindex 1", b"index 1\nextra ZW50cnkgMQ=="),
        (b"index 1\n", b"index 1\nAAAA\n"),
        (b"index 1\n", b"index 1\n" + b"gSKyXoYZUgZ6jduWYrkDOARinOMGJveXjgMkBTcdPlQ=\n" * 63),
        (b"index 1\n", "index 1\né\n".encode()),
        (b"\n\n" + ORIGIN.encode(), b"\n" + ORIGIN.encode()),
        (b"\n2\n", b"\n02\n"),
    ],
)
def test_a_proof_file_that_is_wrong_is_refused(old: bytes, new: bytes) -> None:
    data = PROOF.to_bytes()
    assert old in data
    with pytest.raises(FormatError):
        TlogProof.from_bytes(data.replace(old, new, 1))
    with pytest.raises(FormatError):
        TlogProof.from_bytes(replace(PROOF, extra=bytes(200_000)).to_bytes())


JUNK = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda whole, at, cut, junk: whole[: at % len(whole)] + junk + whole[at % len(whole) + cut :],
        st.sampled_from(
            [TWO_OF_THREE.to_bytes(), NESTED.to_bytes(), PROOF.to_bytes(), cosigned("a", "b"), REAL_POLICY]
        ),
        st.integers(0, 2000),
        st.integers(0, 4),
        st.binary(max_size=6),
    ),
)


@given(JUNK)
@example(b"witness a \xff+00000000+AAAA\nquorum none\n")
@example(b"log \xff+00000000+" + b"AQ" + b"A" * 42 + b"\nquorum none\n")
def test_junk_raises_the_one_family(data: bytes) -> None:
    for read in (Policy.from_bytes, TlogProof.from_bytes, TWO_OF_THREE.open, VerifierKey.from_text):
        with contextlib.suppress(LedgerError):
            read(data.decode("utf-8", "surrogateescape") if read == VerifierKey.from_text else data)  # type: ignore[arg-type]
    with contextlib.suppress(LedgerError):
        cosigning_time(TEXT, NoteSignature("a.example/w", b"1234", data), WITNESSES["a"])


NOW = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(("threshold", "expected"), [(1, 300), (2, 200), (3, 100)])
def test_a_log_is_as_young_as_a_quorum_says(threshold: int, expected: int) -> None:
    trust = policy((PolicyGroup("group", threshold, ("a", "b", "c")),), "group")
    assert quorum_time(trust, {"a": 200, "b": 300, "c": 100}) == datetime.fromtimestamp(expected, UTC)


def test_a_single_witness_cannot_make_a_log_look_younger_than_the_quorum_says() -> None:
    assert quorum_time(TWO_OF_THREE, {"a": 2**62, "b": 50}) == datetime.fromtimestamp(50, UTC)
    assert quorum_time(TWO_OF_THREE, {"a": 2**62}) is None
    assert quorum_time(Policy(()), {}) is None


def test_an_age_is_held_against_the_clock_of_the_verifier() -> None:
    old = Freshness(NOW, NOW - timedelta(hours=25))
    assert "1 day old (2026-06-29 23:00:00 UTC)" in str(old)
    old.check(timedelta(hours=25))
    with pytest.raises(ProofError):
        old.check(timedelta(hours=1))
    assert Freshness(NOW, NOW + timedelta(seconds=3)).age == timedelta()
    ahead = Freshness(NOW, NOW + timedelta(days=30))
    with pytest.raises(ProofError):
        ahead.check(timedelta(days=400))


def test_what_the_log_says_of_itself_is_told_and_not_believed() -> None:
    dated = Freshness(NOW, None, NOW - timedelta(minutes=3))
    assert (dated.age, "3 minutes ago" in str(dated)) == (None, True)
    with pytest.raises(ProofError):
        dated.check(timedelta(days=400))
