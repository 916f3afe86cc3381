// The chat page: sends the whole conversation with every question, checks the receipt of each answer, and shows what it
// says.

import { checkReceipt, readReceipt } from "./receipt_check.js";
import { authorized, chat } from "./stream.js";
import { CannotCheck } from "./verify.js";

const at = (id) => document.getElementById(id);
const conversation = [];
const front = fetch("/page.json").then((answer) => answer.json());
const EVERYWHERE = ["0.0.0.0", "[::]"];  // where the explorer listens, and no place to call
let running = null;

// `kolm up` prints the page's URL with this start's key behind #, which no request sends. Kept for reloads of this tab.
function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    sessionStorage.setItem("key", given);
    history.replaceState(null, "", location.pathname);
  }
  at("key").value = sessionStorage.getItem("key") ?? "";
}

async function describe() {
  const answer = await fetch("/v1/models", { headers: authorized(at("key").value) });
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
  return { item, shown, facts };
}

// Folded, before the answer; there from the first thought on.
function think(item, text) {
  let folded = item.querySelector("details");
  if (!folded) {
    folded = document.createElement("details");
    folded.append(Object.assign(document.createElement("summary"), { textContent: "Thoughts" }), document.createElement("p"));
    folded.lastElementChild.className = "thoughts";
    item.prepend(folded);
  }
  folded.lastElementChild.textContent += text;
}

function fact(text, kind = "") {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

// While an answer comes only its chunks are seen, and several passes may have come in one.
function speed(tokens, chunks, began) {
  const seconds = (performance.now() - began) / 1000;
  const rate = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return [fact(`${tokens} tokens`), fact(rate), fact(`${(tokens / chunks).toFixed(2)} tokens a chunk`)];
}

async function ended(kolm, turns, answer) {
  const accepted = kolm.acceptance;
  const [drafted, length] = [accepted.num_draft_tokens, accepted.mean_acceptance_length];
  const parts = length === undefined ? [] : [fact(`${length.toFixed(2)} tokens a pass`)];
  parts.push(fact(kolm.fallback_reason ? `${kolm.method} (${kolm.fallback_reason})` : kolm.method));
  if (drafted) parts.push(fact(`${accepted.num_accepted_tokens} of ${drafted} drafted tokens accepted`));
  for (const receipt of kolm.receipts) parts.push(...(await receiptFacts(receipt, turns, answer)));
  return parts;
}

async function receiptFacts(receipt, turns, answer) {
  const { keys, scopes, explorer } = await front;
  const read = readReceipt(receipt.file);
  const checked = await checkReceipt(read, turns, answer, keys, scopes).then(() => null, (error) => error);
  const where = receipt.pending ? "on its way to the ledger" : `entry ${receipt.ledger_index}`;
  const place = [fact(`receipt, ${where}:`), named(receipt.receipt_id, explorer), saved(receipt)];
  if (checked === null) {
    return [fact("receipt checked here: this question, this answer, signed", "badge ok"), ...verdict(read.document), ...place];
  }
  if (checked instanceof CannotCheck) {
    return [fact(`receipt not checked here: ${checked.message}`, "badge"), ...verdict(read.document), ...place];
  }
  return [fact(`this receipt does not hold: ${checked.message}`, "badge bad"), ...place];
}

function verdict({ spec_decode: { verified_identical_to_off: identical, wall_clock_speedup: faster } }) {
  if (identical === null) return [fact("not computed again before it was signed", "badge")];
  if (identical === false) return [fact("another text without speculation", "badge bad")];
  const speed = faster ? `, ${faster.toFixed(2)} times as fast` : "";
  return [fact(`identical without speculation${speed}`, "badge ok")];
}

// The receipt's id; a link to the auditor's page, which has its proof and its verdicts, where there is one.
function named(id, explorer) {
  const made = document.createElement(explorer ? "a" : "span");
  made.className = "id";
  made.textContent = id;
  if (explorer) {
    const place = new URL(explorer, location.href);
    if (EVERYWHERE.includes(place.hostname)) place.hostname = location.hostname;
    made.href = `${place.href.replace(/\/$/, "")}/receipts/${id}`;
    made.target = "_blank";
    made.rel = "noopener";
  }
  return made;
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
  const { item, shown, facts } = turn("assistant", "");
  const body = {
    messages: conversation, stream: true, stream_options: { include_usage: true }, logprobs: true,
    temperature: Number(at("temperature").value), max_completion_tokens: Number(at("tokens").value),
    kolm: { method: at("method").value, receipt_files: true, verify: at("verify").checked ? "inline" : "sampled" },
  };
  const turns = [...conversation];
  let tokens = 0, chunks = 0, began = 0, thoughts = "";
  for await (const event of chat(body, at("key").value, running.signal)) {
    const [choice] = event.choices;
    const read = choice?.logprobs?.content?.length ?? 0;
    shown.textContent += choice?.delta.content ?? "";
    if (choice?.delta.reasoning_content) {
      thoughts += choice.delta.reasoning_content;
      think(item, choice.delta.reasoning_content);
    }
    if (read) {
      began ||= performance.now();
      tokens += read;
      chunks += 1;
      facts.replaceChildren(...speed(tokens, chunks, began));
    }
    if (event.usage) {
      facts.lastElementChild?.remove();
      facts.append(...(await ended(event.kolm, turns, { thoughts, text: shown.textContent })));
    }
  }
  if (shown.isConnected) conversation.push({ role: "assistant", content: shown.textContent });
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
    const [facts, shown] = [...(at("turns").lastElementChild?.children ?? [])].reverse();
    if (shown) {  // not if a new conversation was begun
      facts.append(fact(error.name === "AbortError" ? "stopped; its receipt says so" : error.message, "badge bad"));
      conversation.length = before;
      const text = shown.textContent;
      shown.hidden = !text;
      if (text) conversation.push({ role: "user", content: question }, { role: "assistant", content: text });
    }
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
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value);
  describe();
});
at("clear").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  at("turns").replaceChildren();
  at("question").focus();
});
takeKey();
describe();
