// The checklist of a receipt file (kolm.receipt-file.v1), as ledger/bundle/receipt_file.py has it. The file stays here.

import {
  checkpointIsSigned, climb, entryIsThis, hashLeaf, need, receiptIsSigned, Skipped, verdictsAreSigned, witnessesAgree,
} from "./checklist.js";
import { openCommitments } from "./commitments.js";
import { CannotCheck, fromBase64, readJson, toBase64 } from "./verify.js";

const TYPE = "kolm.receipt-file.v1";

export const FILE_STEPS = [
  { name: "The file holds a receipt", run: openFile, essential: true },
  { name: "Prompt and output are what the receipt commits to", run: commitmentsOpen },
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
  if (file?.type !== TYPE) throw new Error(`this is not a receipt file (${TYPE}), as kolm generate --save writes it`);
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
    throw new Error("its proof is not a tlog-proof with an entry");
  }
  return { index: Number(index[1]), hashes, entry: extra.slice("extra ".length), checkpoint: text.slice(end + 2) };
}

async function commitmentsOpen(work) {
  return openCommitments(need(work.file, "the receipt"), work.opened);
}

async function verdictsOfTheLog(work) {
  const verdicts = await work.verdictsOf(need(work.shown, "the receipt").receiptId);
  if (verdicts === null) throw new Skipped("The ledger behind this explorer does not know this receipt.");
  for (const { index, envelope } of verdicts) {
    const verdict = readJson(fromBase64(readJson(fromBase64(envelope)).payload));
    work.shown.verdicts.set(index, verdict.outcome);
  }
  return verdictsAreSigned({ evidence: { ...work.evidence, verdicts }, shown: work.shown });
}
