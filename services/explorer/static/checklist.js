// The numbered checklist of one receipt: what is checked, in which order, and what came out of each step.

import {
  CannotCheck, checkScope, cosigners, fromBase64, leafHash, openEnvelope, readCheckpoint, readJson, readNote,
  readVerifierKey, rootFromInclusion, sameBytes, toHex, verifyNote,
} from "./verify.js";
import { shownFields } from "./shown.js";

const RECEIPT = "application/vnd.kolm.receipt.v1+json";
const VERDICT = "application/vnd.kolm.verdict.v1+json";

export class Skipped extends Error {}

// A step returns lines about what it computed and throws where something does not hold.
export const STEPS = [
  { name: "The entry is the one in question", run: entryIsThis },
  { name: "A trusted key has signed the receipt", run: receiptIsSigned },
  { name: "This page shows what was signed", run: pageSaysTheSame },
  { name: "The leaf is the hash of the entry", run: hashLeaf },
  { name: "The proof leads from the leaf to the root", run: climb },
  { name: "The log has signed that root", run: checkpointIsSigned },
  { name: "Witnesses have cosigned it", run: witnessesAgree },
  { name: "A trusted auditor has signed each verdict", run: verdictsAreSigned },
];

// Runs every step in order; `report(number, state, lines)` with state ok, bad, skipped or cannot. Gives the overall
// state: bad where anything does not hold, cannot where something could not be checked, else ok. Steps leave in `work`
// what later ones need.
export async function check(work, report, steps = STEPS) {
  const states = [];
  for (const [number, step] of steps.entries()) {
    const [state, lines] = await outcome(step, work);
    states.push(state);
    report(number, state, lines);
    if (state === "bad" && step.essential) break;
  }
  if (states.includes("bad")) return "bad";
  return states.includes("cannot") ? "cannot" : "ok";
}

async function outcome(step, work) {
  try {
    return ["ok", await step.run(work)];
  } catch (error) {
    if (error instanceof Skipped) return ["skipped", [error.message]];
    if (error instanceof CannotCheck) return ["cannot", [`Not checked: ${error.message}.`]];
    return ["bad", [error.message]];
  }
}

export function need(value, what) {
  if (value === undefined) throw new CannotCheck(`${what} was not found by the steps before`);
  return value;
}

export async function entryIsThis(work) {
  const { evidence, shown } = work;
  const bytes = fromBase64(need(evidence.entry, "the entry"));
  const entry = readJson(bytes);
  const listed = readJson(fromBase64(evidence.envelope));
  if (entry.index !== shown.index) throw new Error(`the entry has number ${entry.index}, not ${shown.index}`);
  if (JSON.stringify(entry.envelope) !== JSON.stringify(listed)) {
    throw new Error("the entry in the log holds another envelope than the one shown here");
  }
  const document = readJson(fromBase64(entry.envelope.payload));
  if (document.receipt_id !== shown.receiptId) throw new Error(`the entry is about receipt ${document.receipt_id}`);
  Object.assign(work, { bytes, envelope: entry.envelope, document });
  return [`Entry ${entry.index}, ${bytes.length} bytes, receipt ${document.receipt_id}.`];
}

export async function receiptIsSigned({ evidence, envelope }) {
  const { scopes } = evidence.trusted;
  const keys = evidence.trusted.keys.receipts.map(fromBase64);
  const { payload, signers } = await openEnvelope(need(envelope, "the envelope"), RECEIPT, keys);
  checkScope(readJson(payload), signers, scopes);
  return [`Ed25519 over DSSE's encoding of ${payload.length} bytes.`, `Key ${signers.join(", ")}`];
}

async function pageSaysTheSame({ document, shown }) {
  const signed = shownFields(need(document, "the entry"));
  for (const [path, text] of signed) {
    if (!shown.fields.has(path)) throw new Error(`${path} was signed and is not shown`);
    if (shown.fields.get(path) !== text) {
      throw new Error(`${path} is shown as “${shown.fields.get(path)}”, and was signed as “${text}”`);
    }
  }
  for (const path of shown.fields.keys()) {
    if (!signed.has(path)) throw new Error(`${path} is shown and was not signed`);
  }
  return [`${signed.size} fields, compared one by one.`];
}

export async function hashLeaf(work) {
  work.leaf = await leafHash(need(work.bytes, "the entry"));
  return ["SHA-256 of 0x00 and the entry's bytes:", toHex(work.leaf)];
}

export async function climb(work) {
  const { index, size, hashes } = need(work.evidence.inclusion, "the proof");
  if (index !== work.shown.index) throw new Error(`the proof is about entry ${index}, not ${work.shown.index}`);
  const lines = [];
  const leaf = need(work.leaf, "the leaf");
  const root = await rootFromInclusion(leaf, index, size, hashes.map(fromBase64), ({ sibling, left, root: node }) => {
    lines.push(`${left ? "left " : "right"} ${short(sibling)}  →  ${short(node)}`);
  });
  work.root = root;
  work.size = BigInt(size);
  return [`${hashes.length} siblings up a tree of ${size} entries:`, ...lines, `root  ${toHex(root)}`];
}

export async function checkpointIsSigned(work) {
  const { evidence } = work;
  const note = readNote(fromBase64(need(evidence.checkpoint, "the checkpoint")));
  const head = readCheckpoint(note.text);
  const { origin, keys } = evidence.trusted;
  if (origin !== null && head.origin !== origin) throw new Error(`the checkpoint is of ${head.origin}, not ${origin}`);
  const signers = await verifyNote(note, head.origin, keys.log.map(fromBase64));
  if (head.size !== need(work.size, "the proof")) {
    throw new Error(`the checkpoint is over ${head.size} entries, the proof over ${work.size}`);
  }
  if (!sameBytes(head.root, work.root)) {
    throw new Error(`the signed root is ${toHex(head.root)}: not the one that the proof leads to`);
  }
  work.note = note;
  return [`${head.origin}, ${head.size} entries, and the same root.`, `Key ${signers.join(", ")}`];
}

export async function witnessesAgree({ evidence, note }) {
  const witnesses = evidence.trusted.witnesses.map(readVerifierKey);
  if (witnesses.length === 0) throw new Skipped("This explorer has been given no witness policy: nothing to check.");
  const found = await cosigners(need(note, "the checkpoint"), witnesses);
  if (found.length === 0) throw new Skipped("No witness of the policy has cosigned this checkpoint so far.");
  return found.map(({ name, seconds }) => `${name} at ${moment(seconds)}`);
}

// A witness may claim any second below 2^63; texts end with the year 9999.
function moment(seconds) {
  return new Date(Math.min(seconds, 253_402_300_799) * 1000).toISOString();
}

// What each way of checking can find: only the first three are on kolm's own arithmetic, where a verdict can be exact.
const REPLAYED = ["EXACT", "DEVIATION", "UNREPLAYABLE"];
const FINDINGS = {
  none: [...REPLAYED, "UNCHECKED"],
  prefill: REPLAYED,
  decode: REPLAYED,
  again: ["SAME", "DEVIATION", "UNSTABLE"],
  reference: ["CONSISTENT", "INCONSISTENT"],
};

export async function verdictsAreSigned({ evidence, shown }) {
  if (evidence.verdicts.length === 0) throw new Skipped("This request has not been replayed so far.");
  const keys = evidence.trusted.keys.auditor.map(fromBase64);
  const lines = [];
  for (const { index, envelope } of evidence.verdicts) {
    const { payload, signers } = await openEnvelope(readJson(fromBase64(envelope)), VERDICT, keys);
    const verdict = readJson(payload);
    if (verdict.receipt_id !== shown.receiptId) throw new Error(`verdict ${index} is about ${verdict.receipt_id}`);
    if (shown.verdicts.get(index) !== verdict.outcome) {
      throw new Error(`verdict ${index} is shown as ${shown.verdicts.get(index)}, and was signed as ${verdict.outcome}`);
    }
    if (!FINDINGS[verdict.verification ?? "none"]?.includes(verdict.outcome)) {
      throw new Error(`verdict ${index} says ${verdict.outcome} by ${verdict.verification}, which this page does not know`);
    }
    const whose = verdict.replayed_by ? `replayed by ${verdict.replayed_by} (${verdict.verification}), ` : "";
    lines.push(`Entry ${index}: ${verdict.outcome}, ${whose}key ${signers.join(", ")}`);
  }
  return lines;
}

const short = (bytes) => `${toHex(bytes).slice(0, 12)}…`;
