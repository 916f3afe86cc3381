// The check of an answer's receipt, in the browser: it is about this conversation and this answer, and it is signed.

import { openCommitments } from "./commitments.js";
import { CannotCheck, checkScope, fromBase64, openEnvelope, readJson } from "./verify.js";

const RECEIPT = "application/vnd.kolm.receipt.v1+json";

// What the receipt in a receipt file says: its document. Nothing of it holds before `checkReceipt` has returned.
export function readReceipt(text) {
  const file = JSON.parse(text);
  const envelope = JSON.parse(file.envelope);
  return { file, envelope, document: readJson(fromBase64(envelope.payload)) };
}

// What surrounds the thoughts of an output, as `thoughts.py` has it; the front leaves it out, with the blanks around it.
const OPENINGS = ["", "<think>", "<seed:think>", "[THINK]", "analysis", "final"];
const CLOSINGS = ["", "</think>", "</seed:think>", "[/THINK]", "assistantfinal", "assistantcommentary", "assistant"];
const joined = (thoughts) => thoughts.trim().replace(/\s*assistantanalysis\s*/g, "");

// Whether an output is these thoughts and this answer, and nothing else.
export function consistsOf(output, { thoughts, text }) {
  if (!output.endsWith(text)) return false;
  const rest = output.slice(0, output.length - text.length).trim();
  const isBetween = (opening, closing) =>
    rest.startsWith(opening) && rest.endsWith(closing) && rest.length >= opening.length + closing.length &&
    joined(rest.slice(opening.length, rest.length - closing.length)) === joined(thoughts);
  return OPENINGS.some((opening) => CLOSINGS.some((closing) => isBetween(opening, closing)));
}

// `turns` were sent, `answer` came back (thoughts and text), `keys` (base64) sign receipts, some of them within `scopes`. Throws an Error that says what does not hold,
// and CannotCheck where this browser or this front lacks what the check needs.
export async function checkReceipt({ file, envelope, document }, turns, answer, keys, scopes) {
  const sent = JSON.stringify((file.sent ?? []).map(({ role, content }) => [role, content]));
  if (sent !== JSON.stringify(turns.map(({ role, content }) => [role, content]))) {
    throw new Error("its file holds another conversation");
  }
  if (!consistsOf(file.text, answer)) throw new Error("its file holds another answer");
  await openCommitments(file, document);
  if (keys.length === 0) throw new CannotCheck("this front was given no keys that sign receipts");
  const { signers } = await openEnvelope(envelope, RECEIPT, keys.map(fromBase64));
  checkScope(document, signers, scopes);
}
