"""`kolm receipts`: receipts with their verdicts, listed, shown, exported, and their promises."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from ledger.documents.receipt import ENGINE
from ledger.encoding.canonical import parse_json
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.frame import exits, options
from services.cli.frame.exits import UsageError
from services.cli.frame.failures import explained
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer, remark
from services.cli.frame.values import expect_new_file, moment
from services.cli.frame.views import MARKS, Column, Line, Styled, View, facts, joined, outcome, table, whose_replay
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import ReceiptEntry

if TYPE_CHECKING:
    from services.client.ledger.promised import Promised

Rows = list[tuple[str, Line]]


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of the listed receipts; a receipt has to match all of them."""

    tenant: Annotated[str | None, Option(help="Only receipts of this tenant.")] = None
    method: Annotated[str | None, Option(help="Only receipts with this method.")] = None
    base: Annotated[str | None, Option(metavar="CID", help="Only receipts of this base.")] = None
    head: Annotated[str | None, Option(metavar="CID", help="Only receipts with this draft head.")] = None
    adapter: Annotated[str | None, Option(metavar="CID", help="Only receipts with this adapter.")] = None
    profile: Annotated[str | None, Option(metavar="CID", help="Only receipts with this numerics profile.")] = None
    outcome: Annotated[
        str | None, Option(metavar="EXACT|DEVIATION|…", help="Only receipts with this newest verdict.")
    ] = None
    since: Annotated[str | None, Option(metavar="TIME", help="Only receipts issued at this time or later; UTC.")] = None
    until: Annotated[str | None, Option(metavar="TIME", help="Only receipts issued before this time; UTC.")] = None
    first: Annotated[
        int | None, Option(min=0, metavar="ENTRY", help="Only receipts from this entry of the log on.")
    ] = None
    last: Annotated[int | None, Option(min=0, metavar="ENTRY", help="Only receipts up to this entry of the log.")] = (
        None
    )
    commitment: Annotated[
        str | None, Option(metavar="sha256:HEX", help="Only receipts that commit to this prompt or output.")
    ] = None
    request_id: Annotated[str | None, Option(help="Only receipts of this request.")] = None

    def narrow(self) -> ReceiptFilter:
        """Raises UsageError for an invalid time."""
        same = {name: getattr(self, name) for name in ("tenant", "method", "request_id", "outcome", "commitment")}
        cids = {f"{name}_cid": getattr(self, name) for name in ("base", "head", "adapter", "profile")}
        start = None if self.since is None else moment("--since", self.since)
        end = None if self.until is None else moment("--until", self.until)
        return ReceiptFilter(**same, **cids, start_time=start, end_time=end, min_index=self.first, max_index=self.last)


ANY = Filters()


def list_(
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Number of receipts; the newest is last.")] = 20,
    filters: Filters = ANY,
    prove: Annotated[
        bool, Option("--prove", help="Check that each is signed and in the signed log; exit code 3 if not.")
    ] = False,
    complete: Annotated[bool, Option("--complete", help="Also check that none of the newest was left out.")] = False,
    remember: options.Remember = None,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """List the newest receipts that match every filter."""
    from services.cli.ledger.receipt_files import newest, newest_proven

    narrow = filters.narrow()
    with ledger_at(ledger) as client:
        if prove or complete or remember is not None:
            found, size = newest_proven(client, narrow, limit, paths.trusted, remember, complete=complete)
        else:
            found, size = newest(client, narrow, limit), None
    if not found and filters.method is not None:
        _expect_method(filters.method)

    answer(json, [_listed(each) for each in found], _list_view)
    if size is not None:
        proven = f" {len(found)} receipts, each signed and in the signed log of {size} entries"
        remark((MARKS[True], proven, ", and none of the newest was left out" if complete else ""))


def _expect_method(name: str) -> None:
    """Raises UsageError for an unknown method; called if no receipt matches, for other versions may have others."""
    from services.generation.drafting.methods import METHODS

    known = ("off", *(spec.name for spec in METHODS), ENGINE)
    if name not in known:
        raise UsageError(f"--method: no receipt has {name}; expected one of {', '.join(known)}")


def export(
    receipt: options.Receipt,
    path: Annotated[Path, Argument(help="The file to write, which must not exist.")],
    format_name: Annotated[
        Literal["file", "cose"], Option("--format", help="A receipt file, or a SCITT transparent statement.")
    ] = "file",
    key: Annotated[
        Path | None,
        Option(help="The key that signs a statement, or a PKCS#11 URI. Default: <data-dir>/keys/receipts.pem."),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Write one receipt: with its content, for `kolm replay`, or as a signed statement without."""
    from ledger.keys.signer import open_signer
    from services.cli.ledger.receipt_files import export_receipt, export_statement

    expect_new_file("PATH", path)
    if format_name != "file":
        with ledger_at(ledger) as client:
            signer = open_signer(paths.key("receipts", key), "receipts", key_passphrase_file)
            receipt_id = export_statement(client, receipt, path, signer, paths.trusted)
        document = {"path": str(path), "receipt_id": receipt_id, "issuer": signer.key_id}
        return answer(json, document, lambda _: f"wrote {path}, a statement by {signer.key_id}")
    if key is not None:
        raise exits.UsageError("--key: signs a statement; a receipt file has its signature already")
    with ledger_at(ledger) as client:
        written = export_receipt(client, receipt, path)
    held = f"wrote {path}, which holds the tokens of prompt and answer"
    line = f"{held}; a third party with the base can replay it: kolm replay {path} --model …"
    answer(json, {"path": str(path), "receipt_id": written}, lambda _: line)


def promised(
    file: Annotated[Path, Argument(metavar="FILE", help="A file of `kolm generate --promise`.", dir_okay=False)],
    remember: options.Remember = None,
    answer_file: Annotated[
        Path | None,
        Option(
            "--answer", metavar="FILE", help="Write the log's signed answer that receipts are missing to this file."
        ),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Check that the log holds the receipts that were promised before an answer. Exit code 3 if due and missing."""
    from services.cli.ledger.receipt_files import write_new
    from services.cli.verify.shown import fulfilment_document

    if answer_file is not None:
        expect_new_file("--answer", answer_file)
    with ledger_at(ledger) as client:
        found = check_promise(client, file, paths.trusted, remember, datetime.now(UTC))
    if answer_file is not None and found.answer is not None:
        write_new(answer_file, found.answer.envelope)
    signed = None if found.answer is None else found.answer.answer.to_document()
    document = {"state": found.state, "tree_size": found.tree_size, "answer": signed}
    answer(json, document | fulfilment_document(found.fulfilment), _promised_view)
    raise typer.Exit(exits.VERIFICATION_FAILED if found.state == "BROKEN" else exits.OK)


def show(
    receipt: options.Receipt,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Show one receipt and check its signature and its place in the log. Exit code 3 if either is wrong."""
    from services.cli.ledger.receipt_files import find, prove

    with ledger_at(ledger) as client:
        details = find(client, receipt)
        proof = prove(details, paths.trusted)
    document = _listed(details.receipt) | {
        "verdicts": [{"ledger_index": each.index, **envelope_document(each.envelope)} for each in details.verdicts],
        "content": details.content_state.lower(),
        "erasure_index": details.erasure_index,
        "proof": asdict(proof),
    }
    answer(json, document, _receipt_view)
    raise typer.Exit(exits.OK if proof.ok else exits.VERIFICATION_FAILED)


def check_promise(ledger: LedgerClient, file: Path, trusted: Path, remember: Path | None, now: datetime) -> Promised:
    """The state of the promise in `file`. `now` is the verifier's own clock.

    Raises UsageError without a promise or keys, LedgerError for a wrong signature or proof, KolmError.
    """
    from ledger.documents.promise import open_promise
    from services.cli.trust import load_trusted
    from services.cli.verify.sources import read_promise_file
    from services.client.ledger.promised import look_up
    from services.client.ledger.verified import RememberedCheckpoint, VerifiedLedger

    keys, envelope = load_trusted(trusted), read_promise_file(file)
    verified = VerifiedLedger(ledger, keys, RememberedCheckpoint(remember))
    return look_up(verified, open_promise(envelope, keys), now, envelope)


def envelope_document(envelope: bytes) -> dict[str, Any]:
    """`document` is the parsed payload; `envelope` the DSSE JSON as text, for a verifier."""
    from ledger.keys.envelope import Envelope

    return {"document": parse_json(Envelope.from_bytes(envelope).payload), "envelope": envelope.decode("utf-8")}


def _listed(receipt: ReceiptEntry) -> dict[str, Any]:
    listed = {"receipt_id": receipt.receipt_id, "ledger_index": receipt.index, "outcome": receipt.outcome}
    return listed | envelope_document(receipt.envelope)


def _list_view(receipts: list[dict[str, Any]]) -> View:
    """One line for each receipt."""
    return table(
        receipts,
        Column("entry", "ledger_index", right=True),
        Column("receipt", "receipt_id", whole=True),
        Column("method", "document.spec_decode.method"),
        Column("tokens", "document.output.tokens", right=True),
        Column("verdict", lambda row: outcome(row["outcome"], row["document"]["output"]["tokens"])),
        empty="no receipts",
    )


def _receipt_view(shown: dict[str, Any]) -> View:
    """A receipt in sections: request, output, content, speculation, proofs. Its content is for auditors, and never
    printed.
    """
    document = shown["document"]
    rows = (*_request(document), *_output(document), *_content(shown), *_speculation(document), *_proven(shown))
    title = (Styled("receipt ", "bold"), shown["receipt_id"])
    problem = shown["proof"]["problem"]
    grid = facts(*((Styled(name, "dim"), value) for name, value in rows))
    return [title, grid, *([] if problem is None else [Styled(problem, "bold red")])]


def _request(document: dict[str, Any]) -> Rows:
    sampling = document["sampling"]
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
    failed = (Styled("had failed its probe", "bold"), ": one row a pass, speculation off")
    probe: dict[bool, Line] = {True: "passed its probe at the server's start", False: failed}
    return [
        ("issued", f"{document['issued_at']} for {document['tenant']}"),
        ("request", document["request_id"]),
        ("base", document["base_cid"]),
        ("numerics profile", document["profile_cid"]),
        *([("", probe[document["profile_proven"]])] if "profile_proven" in document else []),
        ("sampling", ", ".join(f"{name} {sampling[name]}" for name in names)),
    ]


def _output(document: dict[str, Any]) -> Rows:
    prompt, output = document["prompt"], document["output"]
    margin = "" if output["min_margin"] is None else f", least margin {output['min_margin']:.4g}"
    cached = f", {prompt['cached_tokens']} of them cached" if prompt.get("cached_tokens") else ""
    beside = ", computed beside others" if document.get("beside_others") else ""
    return [
        ("prompt", f"{prompt['tokens']} tokens{cached}, commitment {prompt['commitment']}"),
        ("output", f"{output['tokens']} tokens, commitment {output['commitment']}"),
        ("", f"finished by {output['finish_reason']}{margin}{beside}"),
        ("stream digest", output["stream_digest"]),
    ]


def _content(shown: dict[str, Any]) -> Rows:
    states: dict[str, Line] = {
        "kept": "kept, for auditors",
        "erased": (Styled("erased", "bold"), f" by entry {shown['erasure_index']}"),
        "never_given": "never sent to the ledger",
    }
    return [("content", states[shown["content"]])] if shown["content"] in states else []


def _speculation(document: dict[str, Any]) -> Rows:
    from ledger.documents.receipt import Receipt

    block = document["spec_decode"]
    asked = "" if block["requested_method"] == block["method"] else f" (asked for {block['requested_method']})"
    fallback = f", because of {block['fallback_reason']}" if block["fallback_reason"] else ""
    length = block["mean_acceptance_length"]
    passes = f"{block['target_passes']} passes of the target" + (f", {length:.2f} tokens each" if length else "")
    if block["target_passes"] is None:
        passes = "the engine does not count its passes"
    rows: Rows = [("method", (Styled(block["method"], "bold"), f"{asked}{fallback}: {passes}"))]
    if (why := explained(block["fallback_reason"])) is not None:
        rows.append(("why not", why))
    if "passes_by_method" in block:
        rows.append(("passes by", _passes(block["passes_by_method"])))
    if "gains" in block:
        gains = ", ".join(f"{method} {gain:+.2f}" for method, gain in block["gains"].items())
        rows.append(("gained", f"{gains} tokens a pass over off"))
    if block["tokens_proposed"]:
        rows.append(("drafts", f"{block['tokens_accepted']} of {block['tokens_proposed']} tokens accepted"))
    if block["wall_clock_speedup"] is not None:
        rows.append(("speedup", f"{block['wall_clock_speedup']:.2f} × off ({block['speedup_basis']})"))
    if (over := Receipt.from_document(document).overclaim) is not None:
        rows.append(("", Styled(f"the receipt {over}, which was not measured", "yellow")))
    verified: dict[bool | None, Line] = {
        True: "yes, replayed before signing",
        False: Styled("no", "bold red"),
        None: block.get("unverified") or "left to the audit",
    }
    return [*rows, ("identical to off", verified[block["verified_identical_to_off"]])]


def _passes(by_method: dict[str, int]) -> str:
    """Passes of the target by the method that drafted for them; off is a pass without a draft."""
    counts = ", ".join(f"{method} {count}" for method, count in by_method.items())
    return f"{counts} (off: nothing was drafted)" if len(by_method) > 1 and "off" in by_method else counts


def _proven(shown: dict[str, Any]) -> Rows:
    proof = shown["proof"]
    unchecked = " (no trusted keys to check with)" if proof["signature"] is None else ""
    place = f" entry {shown['ledger_index']} of {proof['tree_size']}{unchecked}"
    rows: Rows = [
        ("signature", (MARKS[proof["signature"]], f" by a trusted key of role receipts{unchecked}")),
        ("in the log", (MARKS[proof["inclusion"]], place)),
    ]
    rows += [("verdict", _judged(verdict)) for verdict in shown["verdicts"]]
    return rows if shown["verdicts"] else [*rows, ("verdict", "not yet: no auditor has computed it again")]


def _judged(verdict: dict[str, Any]) -> Line:
    found = verdict["document"]
    compared = found["tokens_compared"]
    whose = whose_replay(found.get("verification"), found.get("replayed_by"))
    reason = f": {found['reason']}" if found.get("reason") else ""
    place = f" (entry {verdict['ledger_index']}){reason}"
    return joined((outcome(found["outcome"], compared), f", {compared} tokens compared ", whose, place), "")


def _promised_view(found: dict[str, Any]) -> View:
    """The promise, each choice, and the state."""
    promise, places, endings = found["document"], found["entries"], found["finish_reasons"]
    choices: Rows = [
        (f"choice {each}", f"entry {places[each]}, ended by {endings[each]}" if each in places else "not in the log")
        for each in map(str, range(promise["choices"]))
    ]
    state = {
        "KEPT": (Styled("KEPT", "green"), ": the log holds every promised receipt"),
        "OPEN": (Styled("OPEN", "bold"), ": not all of the receipts are in the log, and they are not due yet"),
        "BROKEN": (Styled("BROKEN", "bold red"), ": receipts are due, and proven to be missing from the log"),
    }[found["state"]]
    if found["state"] == "KEPT" and found["without_output"]:
        empty = ", ".join(map(str, found["without_output"]))
        of = f": the receipt of choice {empty} has an error and no output. If you were shown an output, keep it"
        state = (Styled("KEPT in form alone", "yellow"), of)
    if found["answer"] is not None:
        signed = ": receipts are due, and, as the log has signed (`--answer FILE` keeps it), not in its tree"
        state = (Styled("BROKEN", "bold red"), signed)
    prompt = promise["prompt"]
    return facts(
        ("promised", f"{promise['promised_at']} for {promise['tenant']}, due {promise['due']}"),
        ("request", promise["request_id"]),
        ("nonce", "none" if promise["nonce"] is None else promise["nonce"]),
        ("prompt", f"{prompt['tokens']} tokens, commitment {prompt['commitment']}"),
        *choices,
        ("state", (*state, f" of {found['tree_size']} entries")),
    )
