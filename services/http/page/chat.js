// The chat page: sends the whole conversation with every question, and shows what the receipt of each answer says.

import { chat } from "/page/stream.js";

const at = (id) => document.getElementById(id);
const conversation = [];
let running = null;

async function describe() {
  const answer = await fetch("/v1/models");
  if (!answer.ok) return;
  const [model] = (await answer.json()).data;
  at("model").textContent = model.id;
  const methods = ["auto", "off", ...model.kolm.methods.filter((name) => name !== "off")];
  at("method").replaceChildren(...methods.map((name) => new Option(name)));
}

function turn(role, text) {
  const item = document.createElement("li");
  item.className = `turn ${role}`;
  const shown = document.createElement("p");
  shown.className = "text";
  shown.textContent = text;
  const facts = document.createElement("p");
  facts.className = "facts";
  item.append(shown, facts);
  at("turns").append(item);
  item.scrollIntoView({ block: "nearest" });
  return { shown, facts };
}

function fact(text, kind = "") {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

function speed(tokens, passes, began) {
  const seconds = (performance.now() - began) / 1000;
  const rate = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return [fact(`${tokens} tokens`), fact(rate), fact(`${(tokens / passes).toFixed(2)} tokens a pass`)];
}

function ended(kolm, parts) {
  const accepted = kolm.acceptance;
  const drafted = accepted.num_draft_tokens;
  parts.push(fact(kolm.fallback_reason ? `${kolm.method} (${kolm.fallback_reason})` : kolm.method));
  if (drafted) parts.push(fact(`${accepted.num_accepted_tokens} of ${drafted} drafted tokens accepted`));
  for (const receipt of kolm.receipts) parts.push(...receiptFacts(receipt));
  return parts;
}

function receiptFacts(receipt) {
  const document_ = JSON.parse(utf8(atob(JSON.parse(JSON.parse(receipt.file).envelope).payload)));
  const { verified_identical_to_off: identical, wall_clock_speedup: faster } = document_.spec_decode;
  const parts = [];
  if (identical === true) {
    parts.push(fact(faster ? `identical without speculation, ${faster.toFixed(2)} times as fast` : "identical without speculation", "badge ok"));
  } else if (identical === false) {
    parts.push(fact("another text without speculation", "badge bad"));
  } else {
    parts.push(fact("not computed again before it was signed", "badge"));
  }
  const where = receipt.pending ? "on its way to the ledger" : `entry ${receipt.ledger_index}`;
  parts.push(fact(`receipt, ${where}:`), fact(receipt.receipt_id, "id"), saved(receipt));
  return parts;
}

function utf8(binary) {
  return new TextDecoder().decode(Uint8Array.from(binary, (character) => character.charCodeAt(0)));
}

function saved(receipt) {
  const link = document.createElement("a");
  link.textContent = "save";
  link.download = `receipt-${receipt.receipt_id}.json`;
  link.href = URL.createObjectURL(new Blob([receipt.file], { type: "application/json" }));
  return link;
}

async function ask(question) {
  conversation.push({ role: "user", content: question });
  turn("user", question);
  const { shown, facts } = turn("assistant", "");
  const body = {
    messages: conversation, stream: true, stream_options: { include_usage: true }, logprobs: true,
    temperature: Number(at("temperature").value), max_completion_tokens: Number(at("tokens").value),
    kolm: { method: at("method").value, receipt_files: true, verify: at("verify").checked ? "inline" : "sampled" },
  };
  let tokens = 0, passes = 0, began = 0;
  for await (const event of chat(body, at("key").value, running.signal)) {
    const [choice] = event.choices;
    const read = choice?.logprobs?.content?.length ?? 0;
    if (read) {
      began ||= performance.now();
      tokens += read;
      passes += 1;
      shown.textContent += choice.delta.content;
      facts.replaceChildren(...speed(tokens, passes, began));
    }
    if (event.usage) facts.replaceChildren(...ended(event.kolm, [...facts.children]));
  }
  conversation.push({ role: "assistant", content: shown.textContent });
}

at("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = at("question").value.trim();
  if (!question || running) return;
  running = new AbortController();
  at("question").value = "";
  at("send").disabled = true;
  at("stop").hidden = false;
  const before = conversation.length;
  try {
    await ask(question);
  } catch (error) {
    const said = error.name === "AbortError" ? "stopped; its receipt says so" : error.message;
    at("turns").lastElementChild.lastElementChild.append(fact(said, "badge bad"));
    const text = at("turns").lastElementChild.firstElementChild.textContent;
    conversation.length = before;
    if (text) conversation.push({ role: "user", content: question }, { role: "assistant", content: text });
  }
  running = null;
  at("send").disabled = false;
  at("stop").hidden = true;
  at("question").focus();
});

at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  at("turns").replaceChildren();
  at("question").focus();
});
describe();
