"""A conversation in a bundle: its format, and its comparison with the receipts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ledger.bundle.conversation import Transcript, Turn
from ledger.bundle.folder import BundleFolder
from ledger.bundle.layout import BundleFile
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.content import Turn as Message
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError
from tests.mutations import replace
from tests.unit.ledger.builders import TRUSTED, content, receipt, receipt_id
from tests.vectors.make_bundles import POLICY, bundles, exported, log_of, write_folder

GOOD = bundles()["good"].files
TALK = Transcript(
    "be brief",
    (
        Turn("one?", "answer 0", receipt_id(0), 0),
        Turn("two?", "answer 1", receipt_id(1), 1),
        Turn("three?", "answer 2", receipt_id(2), 1),
    ),
)


class Reader:
    """Reads the prompts of TALK as the ids of the builders' contents, any other as something else."""

    tokenizer_cid = cid(b"tokenizer")

    def prompt(self, sent: str | Sequence[Message]) -> list[int]:
        known = [number for number in range(len(TALK.turns)) if TALK.messages(number) == sent]
        return [*content(known[0]).prompt_token_ids] if known else [0]

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        (token,) = output_token_ids  # the stop token is not read
        return f"answer {token - 40}"


def checked(
    transcript: bytes, folder: Path, reader: object = None, files: dict[str, bytes] = GOOD
) -> tuple[object, str]:
    """The result of the last check of the bundle with this transcript."""
    write_folder((BundleFile(*file) for file in (files | {"transcript.json": transcript}).items()), folder / "bundle")
    trust = Trust(TRUSTED, POLICY, reader=reader or Reader())
    check = verify_bundle(BundleFolder(folder / "bundle"), trust).checks[12]
    return check.passed, check.detail


def changed(at: int, **changes: object) -> bytes:
    turns = [replace(turn, **changes) if place == at else turn for place, turn in enumerate(TALK.turns)]
    return Transcript(TALK.system, tuple(turns)).to_bytes()


def test_bytes_and_values_are_one() -> None:
    assert Transcript.from_bytes(TALK.to_bytes()) == TALK
    silent = Transcript(None, TALK.turns[:1])
    assert Transcript.from_bytes(silent.to_bytes()) == silent


def test_a_prompt_is_what_was_remembered() -> None:
    told = [("system", "be brief"), ("user", "two?"), ("assistant", "answer 1"), ("user", "three?")]
    assert TALK.messages(2) == [{"role": role, "content": text} for role, text in told]
    assert Transcript(None, TALK.turns).messages(0) == [{"role": "user", "content": "one?"}]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"{}", "type"),
        (b"[]", "transcript.json"),
        (TALK.to_bytes().replace(b'"remembered":1', b'"remembered":2', 1), "turns[1].remembered"),
        (TALK.to_bytes().replace(b'"remembered":1', b'"remembered":-1', 1), "turns[1].remembered"),
        (TALK.to_bytes().replace(b'"interrupted":false', b'"interrupted":0', 1), "turns[0].interrupted"),
        (TALK.to_bytes().replace(receipt_id(1).encode(), receipt_id(0).encode()), "turns"),
        (TALK.to_bytes().replace(receipt_id(1).encode(), b"receipt"), "turns[1].receipt_id"),
        (Transcript(None, ()).to_bytes(), "turns"),
        (TALK.to_bytes() + b"\n", "transcript.json"),
    ],
)
def test_other_bytes_are_refused_by_name(data: bytes, field: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as refused:
        Transcript.from_bytes(data)
    assert refused.value.field in (field, f"transcript.json.{field}")
    assert checked(data, tmp_path)[0] is False


def test_a_conversation_that_is_the_one_of_the_receipts_passes(tmp_path: Path) -> None:
    assert checked(TALK.to_bytes(), tmp_path) == (
        True,
        "3 turns: every prompt is the conversation before it, every answer the output",
    )


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (changed(1, question="two!"), "turn 2: the receipt is about another prompt"),
        (changed(0, answer="answer 9"), "turn 1: the receipt is about another answer"),
        (changed(1, answer="answer"), "turn 2: the receipt is about another answer"),
        (changed(2, remembered=0), "turn 3: the receipt is about another prompt"),
        (changed(2, receipt_id=receipt_id(7)), f"turn 3: its receipt {receipt_id(7)} is not in the bundle"),
        (Transcript(None, TALK.turns).to_bytes(), "turn 1: the receipt is about another prompt"),
        (changed(2, answer="answer 2!", interrupted=True), "turn 3: the receipt is about another answer"),
    ],
)
def test_what_was_changed_is_named(data: bytes, finding: str, tmp_path: Path) -> None:
    passed, detail = checked(data, tmp_path)
    assert (passed, detail.startswith(finding)) == (False, True), detail


def test_an_interrupted_answer_is_a_beginning(tmp_path: Path) -> None:
    assert checked(changed(2, answer="ans", interrupted=True), tmp_path)[0] is True


def test_a_stop_string_is_not_part_of_the_answer(tmp_path: Path) -> None:
    stopped = receipt(0, output=replace(receipt(0).output, stop_reason=" 0"))

    class TwoTokens(Reader):
        def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
            return f"answer {output_token_ids[0] - 40}"

    files = exported(log_of({2: stopped}))
    cut = Transcript(TALK.system, (replace(TALK.turns[0], answer="answer"),)).to_bytes()
    assert checked(cut, tmp_path / "cut", TwoTokens(), files)[0] is True
    whole = Transcript(TALK.system, TALK.turns[:1]).to_bytes()
    assert checked(whole, tmp_path / "whole", TwoTokens(), files)[0] is False


def test_another_tokenizer_is_named(tmp_path: Path) -> None:
    other = Reader()
    other.tokenizer_cid = cid(b"another")
    passed, detail = checked(TALK.to_bytes(), tmp_path, other)
    assert (passed, "was read by the tokenizer" in detail) == (False, True)


def test_what_was_not_compared_is_not_counted_as_passed(tmp_path: Path) -> None:
    files = exported(log_of(), with_content=False)
    passed, detail = checked(TALK.to_bytes(), tmp_path / "bare", files=files)
    assert (passed, "lacks the content of 3" in detail) == (None, True)
    write_folder(
        (BundleFile(*file) for file in (GOOD | {"transcript.json": TALK.to_bytes()}).items()), tmp_path / "unread"
    )
    report = verify_bundle(BundleFolder(tmp_path / "unread"), Trust(TRUSTED, POLICY))
    assert (report.ok, report.checks[12].passed) == (True, None)
    assert "--model" in report.checks[12].detail


def test_a_conversation_is_not_held_against_content_that_is_wrong(tmp_path: Path) -> None:
    name = next(path for path in GOOD if path.startswith("content/"))
    lines = GOOD[name].replace(b'"output_token_ids":[40,', b'"output_token_ids":[41,', 1)
    files = GOOD | {name: lines}
    assert checked(TALK.to_bytes(), tmp_path, files=files) == (None, "not reached")
