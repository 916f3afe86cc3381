// The checklist of a receipt file (kolm.receipt-file.v1), as ledger/bundle/receipt_file.py has it. The file stays here.

import {
  checkpointIsSigned, climb, entryIsThis, hashLeaf, need, receiptIsSigned, Skipped, verdictsAreSigned, witnessesAgree,
} from "./checklist.js";
import { CannotCheck, fromBase64, readJson, sha256, toBase64, toHex } from "./verify.js";

const TYPE = "kolm.receipt-file.v1";

export const FILE_STEPS = [
  { name: "The file holds a receipt", run: openFile, essential: true },
  { name: "Prompt and output are what the receipt commits to", run: openCommitments },
  { name: "The entry of the proof is this receipt", run: entryIsThis },
  { name: "A trusted key has signed the receipt", run: receiptIsSigned },
  { name: "The leaf is the hash of the entry", run: hashLeaf },
  { name: "The proof leads from the leaf to the root", run: climb },
  { name: "The log has signed that root", run: checkpointIsSigned },
  { name: "Witnesses have cosigned it", run: witnessesAgree },
  { name: "A trusted auditor has signed each verdict", run: verdictsOfTheLog },
];

// work.text is the file, work.trusted the explorer's keys, work.verdictsOf asks it for a receipt's verdicts.
async function openFile(work) {
  const file = parsed(work.text, "the file");
  if (file?.type !== TYPE) throw new Error(`this is no receipt file (${TYPE}), as kolm generate --save writes it`);
  const envelope = parsed(file.envelope, "its envelope");
  const document = readJson(fromBase64(envelope.payload));
  const shown = { receiptId: document.receipt_id, verdicts: new Map() };
  Object.assign(work, { file, opened: document, envelope, shown, evidence: { trusted: work.trusted } });
  if (file.proof === null) throw new CannotCheck("the file holds no proof that the log took the receipt");
  const { index, hashes, entry, checkpoint } = readProof(file.proof);
  const size = Number(checkpoint.split("\n")[1]);
  shown.index = index;
  Object.assign(work.evidence, {
    entry,
    envelope: toBase64(new TextEncoder().encode(file.envelope)),
    inclusion: { index, size, hashes },
    checkpoint: toBase64(new TextEncoder().encode(checkpoint)),
  });
  return [`Receipt ${document.receipt_id}, issued at ${document.issued_at}.`];
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${what} is not JSON`);
  }
}

// C2SP tlog-proof, with the entry as extra data. Hashes and entry in base64.
function readProof(text) {
  const end = text.indexOf("\n\n");
  const [first, extra, place, ...hashes] = text.slice(0, end).split("\n");
  const index = /^index (0|[1-9][0-9]{0,15})$/.exec(place ?? "");
  if (end < 0 || first !== "c2sp.org/tlog-proof@v1" || !extra?.startsWith("extra ") || index === null) {
    throw new Error("its proof is no tlog-proof with an entry");
  }
  return { index: Number(index[1]), hashes, entry: extra.slice("extra ".length), checkpoint: text.slice(end + 2) };
}

// ledger/encoding/commitment.py: SHA-256 over domain, 0x00, salt, and token ids (u32, little-endian) or text.
async function openCommitments(work) {
  const { content, sent, text } = need(work.file, "the receipt");
  const { prompt, output } = work.opened;
  const salts = { prompt: fromBase64(content.prompt_salt), output: fromBase64(content.output_salt) };
  await opens("prompt", prompt, "kolm.prompt.v1", salts.prompt, content.prompt_token_ids);
  await opens("output", output, "kolm.output.v1", salts.output, content.output_token_ids);
  const lines = [`${prompt.tokens} tokens of the prompt and ${output.tokens} of the output, by their ids.`];
  if (typeof sent === "string") {
    await opensText("prompt", prompt, "kolm.prompt-text.v1", salts.prompt, sent);
    lines.push("The prompt's text.");
  } else if (sent !== null) {
    const turns = JSON.stringify(sent.map((turn) => Object.fromEntries(Object.entries(turn).sort()))); // RFC 8785
    await opensText("conversation", prompt, "kolm.messages.v1", salts.prompt, turns);
    lines.push(`The conversation of ${sent.length} ${sent.length === 1 ? "message" : "messages"}.`);
  }
  if (text !== null) {
    await opensText("output", output, "kolm.output-text.v1", salts.output, text);
    lines.push("The output's text.");
  }
  return lines;
}

async function opens(name, part, domain, salt, ids) {
  if (ids.length !== part.tokens) throw new Error(`the ${name} has ${ids.length} tokens, the receipt says ${part.tokens}`);
  const bytes = new DataView(new ArrayBuffer(4 * ids.length));
  for (const [place, id] of ids.entries()) {
    if (!Number.isInteger(id) || id < 0 || id > 0xffffffff) throw new Error(`${id} is no token id`);
    bytes.setUint32(4 * place, id, true);
  }
  if ((await commitment(domain, salt, new Uint8Array(bytes.buffer))) !== part.commitment) {
    throw new Error(`the receipt commits to another ${name}`);
  }
}

async function opensText(name, part, domain, salt, text) {
  if ((await commitment(domain, salt, new TextEncoder().encode(text))) !== part.text_commitment) {
    throw new Error(`the receipt commits to another text of the ${name}`);
  }
}

async function commitment(domain, salt, data) {
  if (salt.length !== 32) throw new Error("a salt does not measure 32 bytes");
  const head = new TextEncoder().encode(`${domain}\0`);
  const whole = new Uint8Array(head.length + salt.length + data.length);
  whole.set(head);
  whole.set(salt, head.length);
  whole.set(data, head.length + salt.length);
  return "sha256:" + toHex(await sha256(whole));
}

async function verdictsOfTheLog(work) {
  const verdicts = await work.verdictsOf(need(work.shown, "the receipt").receiptId);
  if (verdicts === null) throw new Skipped("The ledger behind this explorer does not know this receipt.");
  for (const { index, envelope } of verdicts) {
    const said = readJson(fromBase64(readJson(fromBase64(envelope)).payload));
    work.shown.verdicts.set(index, said.outcome);
  }
  return verdictsAreSigned({ evidence: { ...work.evidence, verdicts }, shown: work.shown });
}
