// The receipt's page: fetches the evidence, runs the checklist and writes down what came out, step by step.

import { check, STEPS } from "./checklist.js";
import { begin, conclude, reporter } from "./panel.js";

const SUMMARIES = {
  ok: "Your browser has checked it: this receipt is signed and in the log.",
  bad: "This receipt does not hold.",
  cannot: "This receipt could not be checked in full.",
};

const DEVIATES = "Its output did not come out again: an auditor found a deviation, below.";

const panel = document.getElementById("check");
function what(selector, key) {
  const found = new Map();
  for (const element of document.querySelectorAll(selector)) found.set(key(element), element.textContent);
  return found;
}

async function run() {
  begin();
  const answer = await fetch(panel.dataset.evidence, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`the evidence cannot be had (${answer.status})`);
  const shown = {
    receiptId: panel.dataset.receipt,
    index: Number(panel.dataset.index),
    fields: what("[data-field]", (element) => element.dataset.field),
    verdicts: what("[data-verdict]", (element) => Number(element.dataset.verdict)),
  };
  const state = await check({ evidence: await answer.json(), shown }, reporter(STEPS));
  const deviates = [...shown.verdicts.values()].some((outcome) => ["DEVIATION", "INCONSISTENT"].includes(outcome));
  if (state === "ok" && deviates) conclude("deviates", `${SUMMARIES.ok} ${DEVIATES}`);
  else conclude(state, SUMMARIES[state]);
}

run().catch((error) => conclude("bad", `This receipt could not be checked: ${error.message}.`));
