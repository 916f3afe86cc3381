"""`kolm verify` before it reads, and texts that are held against tokens."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from ledger.bundle.tiles import TileFolder, export_tiles
from ledger.documents.content import Content, Turn
from ledger.documents.receipt import Receipt, ThoughtsPart
from ledger.errors import ProofError
from services.cli.verify.checks import Texts, compared_texts
from services.generation.engine.text.conversation import Conversation
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.requests.prompt import chat_turns, read_tools, sent_turns
from services.generation.target.identity import tokenizer_cid
from tests.examples import VECTORS
from tests.fakes.grammars import HERMES
from tests.fakes.tiny_model import tiny_tokenizer
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, policy, receipt
from tests.unit.ledger.monitor.listed_log import ListedLog

ROOT = Path(__file__).parents[3]
BLOCKED = ("torch", "numpy", "grpc", "google", "kolm", "sqlalchemy", "pydantic_settings", "starlette")
ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Blocker())
from services.cli.main import app
app(sys.argv[1:], prog_name="kolm")
"""


def kolm(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = ALONE.format(blocked=set(BLOCKED))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("good", 0), ("payload_edited", 3)])
def test_a_bundle_is_verified_with_nothing_else_installed(name: str, code: int) -> None:
    bundle, trusted = VECTORS / f"bundles/{name}.tar.gz", VECTORS / "log/keys"
    done = kolm("verify", str(bundle), f"--trusted={trusted}", "--max-unreplayable=1", "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (code, code == 0), done.stderr


@pytest.mark.slow
def test_tiles_are_monitored_with_nothing_else_installed(tmp_path: Path) -> None:
    log = ListedLog()
    log.append(policy(0.0), receipt(0))
    TileFolder(tmp_path / "tiles").write(export_tiles(log.entries, log.checkpoint()))
    for role in ("log", "receipts", "auditor"):
        KEYS[role].publish(tmp_path / "trusted")
    assert kolm("monitor", "--once", "--tiles", str(tmp_path / "tiles"), "--data-dir", str(tmp_path)).returncode == 0


@pytest.mark.slow
def test_what_is_wrong_is_explained_without_the_client(tmp_path: Path) -> None:
    good, keys = str(VECTORS / "bundles/good.tar.gz"), str(VECTORS / "log/keys")
    for path, trusted, code in (
        ("nothing.tar.gz", keys, 4),
        (good, "nowhere", 2),
        (good, str(tmp_path), 2),
        (str(VECTORS / "bundles/expected.json"), keys, 3),
        (str(VECTORS / "bundles/policy"), keys, 3),
    ):
        assert kolm("verify", path, "--trusted", trusted).returncode == code


SENT, ANSWER = "The ledger keeps", "one receipt."
END = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(384).save_pretrained(folder)
    thoughts = "{% for message in messages %}{{ message.reasoning_content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(HERMES + thoughts)
    return folder


def served(model: Path, prompt: list[int], **output: object) -> tuple[Receipt, Content]:
    """A receipt of ANSWER after a prompt."""
    ids = Tokenizer(model).encode_output(ANSWER)
    made = receipt(0, tokenizer_cid=tokenizer_cid(model))
    ending = {"finish_reason": "length", "stop_reason": None} | output
    return replace(made, output=replace(made.output, **ending)), Content(b"", tuple(prompt), b"", tuple(ids))


def compared(model: Path, sent: str | list[Turn] | None = SENT, answer: str | None = ANSWER, **output: object) -> Texts:
    return compared_texts(*served(model, Tokenizer(model).encode(SENT), **output), sent, answer, model)


def test_what_was_sent_and_answered_is_the_same(model: Path) -> None:
    assert compared(model).same is True
    assert compared(model, answer="one", stop_reason=" rec", finish_reason="stop").same is True
    document, content = served(model, Tokenizer(model).encode(SENT), finish_reason="stop")
    ended = replace(content, output_token_ids=(*content.output_token_ids, END))
    assert compared_texts(document, ended, SENT, ANSWER, model).same is True


def test_what_differs_is_named(model: Path) -> None:
    assert compared(model, "The ledger keep").same is False
    assert compared(model, [{"role": "user", "content": SENT}]).same is False
    for answer in ("one receipt", "one receipt. ", ""):
        assert compared(model, answer=answer).same is False
    document, content = served(model, [5])
    other = replace(document, tokenizer_cid=document.base_cid)
    assert compared_texts(other, content, None, ANSWER, model).same is not True


def test_thoughts_of_a_receipt_are_those_of_the_model_s_template(model: Path, tmp_path: Path) -> None:
    thinking = tmp_path / "thinking"
    shutil.copytree(model, thinking)
    (thinking / "chat_template.jinja").write_text(HERMES + "{#<think></think>#}")
    thoughts = ThoughtsPart("<think>", ("</think>",), begun=False)
    for folder, part, same in ((thinking, thoughts, True), (thinking, None, True), (model, thoughts, None)):
        document, content = served(folder, Tokenizer(folder).encode(SENT))
        stated = replace(document, sampling=replace(document.sampling, thoughts=part))
        assert compared_texts(stated, content, SENT, ANSWER, folder).same is same


def test_what_is_not_there_is_not_counted_as_compared(model: Path) -> None:
    assert compared(model, None).same is None
    assert (compared(model, None, None).same, compared(model, None, "else").same) == (None, False)


def test_a_prompt_whose_text_was_read_as_markup_is_another_prompt(model: Path) -> None:
    sent, tokenizer = [{"role": "user", "content": "When?<|end|>"}], Tokenizer(model)
    as_text = tokenizer.encode_chat(sent)
    assert compared_texts(*served(model, as_text), sent, ANSWER, model).same is True
    rendered = tokenizer._rendered(Conversation(sent))
    as_markup = list(tokenizer._fast.encode(rendered, add_special_tokens=False).ids)
    assert as_markup != as_text
    assert compared_texts(*served(model, as_markup), sent, ANSWER, model).same is False


def test_a_continued_turn_is_compared_as_one(model: Path) -> None:
    turns = [pb.Message(role="user", content="Count"), pb.Message(role="assistant", content="1, ")]
    chat, tokenizer = pb.ChatMessages(messages=turns, continue_final_message=True), Tokenizer(model)
    given = [{"role": each.role, "content": each.content} for each in turns]
    sent = sent_turns(chat)
    continued, begun = tokenizer.encode_chat(given, continued=True), tokenizer.encode_chat(given)
    assert compared_texts(*served(model, continued), sent, ANSWER, model).same is True
    assert compared_texts(*served(model, begun), sent, ANSWER, model).same is not True
    assert compared_texts(*served(model, continued), given, ANSWER, model).same is False
    with pytest.raises(ProofError):
        compared_texts(*served(model, continued), [*sent, given[0]], ANSWER, model)


def test_a_conversation_with_tools_is_compared_if_the_model_had_all_of_them(model: Path) -> None:
    call = pb.ToolCall(id="call00001", name="get_time", arguments='{"zone": "UTC"}')
    chat = pb.ChatMessages(
        messages=[
            pb.Message(role="user", content="When?"),
            pb.Message(role="assistant", tool_calls=[call], reasoning_content="A clock has it."),
            pb.Message(role="tool", content="noon", tool_call_id="call00001"),
        ],
        tools=[pb.Tool(name="get_time", parameters='{"type": "object"}')],
    )
    tools, turns = read_tools(chat), chat_turns(chat.messages)
    assert tools is not None
    told = Tokenizer(model).encode_chat(turns, tools.described())
    assert compared_texts(*served(model, told), sent_turns(chat), ANSWER, model).same is True
    untold = Tokenizer(model).encode_chat(turns)
    assert compared_texts(*served(model, untold), sent_turns(chat), ANSWER, model).same is None


@pytest.mark.parametrize("member", ["tool_calls", "tools"])
@pytest.mark.parametrize("text", ["5", "[5]", "[[1, 2, 3, 4]]", "[" * 100_000], ids=["5", "[5]", "numbers", "deep"])
def test_malformed_calls_and_tools_cannot_be_read(model: Path, member: str, text: str) -> None:
    with pytest.raises(ProofError):
        compared(model, [{"role": "assistant", "content": "", member: text}])
