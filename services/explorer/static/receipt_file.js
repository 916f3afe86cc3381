// The page that checks a receipt file. The file is read here and goes nowhere: asked for are the explorer's keys, and
// the verdicts about the receipt's id.

import { check } from "./checklist.js";
import { FILE_STEPS } from "./file_checklist.js";
import { begin, conclude, reporter, text } from "./panel.js";
import { shownFields, shownText } from "./shown.js";

const LARGEST = 64 << 20; // bytes; as ledger/bundle/receipt_file.py reads
const SUMMARIES = {
  ok: "Your browser has checked it: prompt, output, signatures and place in the log hold.",
  bad: "This file does not hold.",
  cannot: "This file could not be checked in full.",
};
const DEVIATES = " Its output did not come out again: an auditor found a deviation.";

const contents = document.getElementById("contents");
const fields = document.getElementById("fields");

function turnText({ role, content, reasoning_content, tool_calls, tools }) {
  return `${role}: ${[reasoning_content, content, tool_calls, tools].filter(Boolean).join("\n")}`;
}

async function asked(url) {
  const answer = await fetch(url, { headers: { accept: "application/json" } });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`${url} cannot be had (${answer.status})`);
  return answer.json();
}

async function verdictsOf(receiptId) {
  const evidence = await asked(`/receipts/${encodeURIComponent(receiptId)}/evidence.json`);
  return evidence === null ? null : evidence.verdicts;
}

function show({ file, opened }) {
  fields.replaceChildren();
  const turns = Array.isArray(file.sent) ? file.sent.map(turnText).join("\n") : file.sent;
  for (const [name, value] of [["prompt", turns], ["output", file.text], ...shownFields(opened)]) {
    const row = document.createElement("div");
    const lines = value === null ? "not in the file" : value.split("\n").map(shownText).join("\n");
    row.append(text("dt", name.replaceAll("_", " ")), text("dd", lines));
    fields.append(row);
  }
  contents.hidden = false;
}

async function run(dropped) {
  begin();
  contents.hidden = true;
  if (dropped.size > LARGEST) throw new Error("it is larger than any receipt file");
  const work = { text: await dropped.text(), trusted: await asked("/trusted.json"), verdictsOf };
  const state = await check(work, reporter(FILE_STEPS), FILE_STEPS);
  const deviates = state === "ok" && [...work.shown.verdicts.values()].some((outcome) => ["DEVIATION", "INCONSISTENT"].includes(outcome));
  conclude(deviates ? "deviates" : state, SUMMARIES[state] + (deviates ? DEVIATES : ""));
  if (work.opened) show(work);
}

function take(files) {
  if (files.length === 1) run(files[0]).catch((error) => conclude("bad", `This file could not be checked: ${error.message}.`));
}

document.getElementById("drop").hidden = false;
document.getElementById("unchecked").hidden = true;
document.getElementById("file").addEventListener("change", (event) => take(event.target.files));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  take(event.dataTransfer.files);
});
