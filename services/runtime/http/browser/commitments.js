// What the receipt in a receipt file commits to: ledger/bundle/receipt_file.py and ledger/encoding/commitment.py.

import { fromBase64, sha256, toHex } from "./verify.js";

// Opens the commitments to prompt and output with what the file holds of them; gives lines that say what was opened.
// Throws an Error that names what is another.
export async function openCommitments({ content, sent, text }, { prompt, output }) {
  for (const name of ["prompt", "output"]) {
    if (typeof content?.[`${name}_salt`] !== "string" || !Array.isArray(content[`${name}_token_ids`])) {
      throw new Error(`its content lacks the salt or the token ids of the ${name}`);
    }
  }
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

// SHA-256 over domain, 0x00, salt, and token ids (u32, little-endian) or text.
async function commitment(domain, salt, data) {
  if (salt.length !== 32) throw new Error("a salt does not measure 32 bytes");
  const head = new TextEncoder().encode(`${domain}\0`);
  const whole = new Uint8Array(head.length + salt.length + data.length);
  whole.set(head);
  whole.set(salt, head.length);
  whole.set(data, head.length + salt.length);
  return "sha256:" + toHex(await sha256(whole));
}
