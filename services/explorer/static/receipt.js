// The receipt's page: fetches the evidence, runs the checklist and writes down what came out, step by step.

import { check, STEPS } from "./checklist.js";

const WORDS = { ok: "holds", bad: "does not hold", skipped: "nothing to check", cannot: "not checked" };
const SUMMARIES = {
  ok: "Your browser has checked it: this receipt is signed and stands in the log.",
  bad: "This receipt does not hold.",
  cannot: "This receipt could not be checked in full.",
};

const DEVIATES = "What it says did not come out again: an auditor found a deviation, below.";

const panel = document.getElementById("check");
const summary = document.getElementById("check-summary");
const list = document.getElementById("check-steps");

function text(tag, content, name) {
  const element = document.createElement(tag);
  element.textContent = content;
  if (name) element.className = name;
  return element;
}

function what(selector, key) {
  const found = new Map();
  for (const element of document.querySelectorAll(selector)) found.set(key(element), element.textContent);
  return found;
}

function report(number, state, lines) {
  const item = document.createElement("li");
  item.dataset.state = state;
  const head = text("p", "", "step");
  head.append(text("strong", STEPS[number].name), " ", text("span", WORDS[state], "state"));
  item.append(head, text("pre", lines.join("\n")));
  list.append(item);
}

function conclude(state, message) {
  panel.dataset.state = state;
  summary.textContent = message;
}

async function run() {
  document.getElementById("unchecked").hidden = true;
  panel.hidden = false;
  list.replaceChildren();
  conclude("running", "Checking …");
  const answer = await fetch(panel.dataset.evidence, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`the evidence cannot be had (${answer.status})`);
  const shown = {
    receiptId: panel.dataset.receipt,
    index: Number(panel.dataset.index),
    fields: what("[data-field]", (element) => element.dataset.field),
    verdicts: what("[data-verdict]", (element) => Number(element.dataset.verdict)),
  };
  const state = await check(await answer.json(), shown, report);
  const deviates = [...shown.verdicts.values()].includes("DEVIATION");
  if (state === "ok" && deviates) conclude("deviates", `${SUMMARIES.ok} ${DEVIATES}`);
  else conclude(state, SUMMARIES[state]);
}

run().catch((error) => conclude("bad", `This receipt could not be checked: ${error.message}.`));
