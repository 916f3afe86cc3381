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
const OPENINGS = ["", "<think>", "<seed:think>", "[THINK]"];
const CLOSINGS = ["", "</think>", "</seed:think>", "[/THINK]"];
// A message of gpt-oss with the name of its channel. All after `final` is the answer.
const MESSAGE = /assistant(?:(analysis|commentary)([^]*?)(?=assistant(?:analysis|commentary|final)|$)|final([^]*))/g;

// Whether an output is these thoughts and this answer, and nothing else.
export function consistsOf(output, answer) {
  return isTagged(output, answer) || isInChannels(output, answer);
}

function isTagged(output, { thoughts, text }) {
  if (!output.endsWith(text)) return false;
  const rest = output.slice(0, output.length - text.length).trim();
  const isBetween = (opening, closing) =>
    rest.startsWith(opening) && rest.endsWith(closing) && rest.length >= opening.length + closing.length &&
    rest.slice(opening.length, rest.length - closing.length).trim() === thoughts.trim();
  return OPENINGS.some((opening) => CLOSINGS.some((closing) => isBetween(opening, closing)));
}

function isInChannels(output, { thoughts, text }) {
  const found = { analysis: "", commentary: "" };
  const rest = `assistant${output}`.replace(MESSAGE, (all, channel, message, answer) => {
    if (channel) found[channel] += message.trim();
    else found.commentary += answer.trimStart();
    return "";
  });
  return rest === "" && found.analysis === thoughts.trim() && found.commentary.trim() === text.trim();
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
