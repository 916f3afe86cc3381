// The check of one receipt, in the browser, with nothing but WebCrypto. It mirrors the Python of ledger/:
// envelope.py (DSSE), entry.py, merkle.py (RFC 6962), note.py and checkpoint.py (C2SP), cosignature.py.
// Every function throws an Error whose message says what does not hold.

const ED25519 = 0x01;
const COSIGNATURE = 0x04;

export class CannotCheck extends Error {}

export function fromBase64(text) {
  if (typeof text !== "string") throw new Error("base64 is missing");
  let raw;
  try {
    raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    throw new Error("this is not base64");
  }
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

export function toBase64(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

export function toHex(bytes) {
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

const utf8 = (text) => new TextEncoder().encode(text);

function strictText(bytes) {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export function sameBytes(one, other) {
  return one.length === other.length && one.every((each, place) => each === other[place]);
}

export async function sha256(bytes) {
  if (globalThis.crypto?.subtle === undefined) {
    throw new CannotCheck("browsers compute hashes only on pages from https or from localhost, and this page is neither");
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

// RFC 6962 section 2.1
export const leafHash = (data) => sha256(joined(Uint8Array.of(0), data));
export const nodeHash = (left, right) => sha256(joined(Uint8Array.of(1), left, right));

// RFC 9162 section 2.1.3.2. Calls `step` with every node on the way up; returns the root that the proof leads to.
export async function rootFromInclusion(leaf, index, size, proof, step = () => {}) {
  let fn = BigInt(index);
  let sn = BigInt(size) - 1n;
  if (fn < 0n || fn > sn) throw new Error(`entry ${index} is not in a tree of ${size} entries`);
  let root = leaf;
  for (const sibling of proof) {
    if (sibling.length !== 32) throw new Error("a hash of the proof does not measure 32 bytes");
    if (sn === 0n) throw new Error("the inclusion proof is too long");
    const left = (fn & 1n) === 1n || fn === sn;
    root = left ? await nodeHash(sibling, root) : await nodeHash(root, sibling);
    step({ sibling, left, root });
    if (left) {
      while ((fn & 1n) === 0n && fn !== 0n) {
        fn >>= 1n;
        sn >>= 1n;
      }
    }
    fn >>= 1n;
    sn >>= 1n;
  }
  if (sn !== 0n) throw new Error("the inclusion proof is too short");
  return root;
}

export async function verifyEd25519(key, message, signature) {
  if (key.length !== 32 || signature.length !== 64) return false;
  let imported;
  try {
    imported = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
  } catch (error) {
    if (error.name === "DataError") return false;
    throw new CannotCheck("this browser has no Ed25519");
  }
  return crypto.subtle.verify("Ed25519", imported, signature, message);
}

export async function keyId(key) {
  return "ed25519:" + toHex(await sha256(key));
}

// DSSE v1, pre-authentication encoding.
export function pae(type, payload) {
  const kind = utf8(type);
  return joined(utf8(`DSSEv1 ${kind.length} `), kind, utf8(` ${payload.length} `), payload);
}

// Mirrors key_scope.py: `scopes` are those of the trusted keys that may sign for a part alone, by key id.
export function checkScope(document, signers, scopes = {}) {
  for (const signer of signers) {
    for (const [name, allowed] of Object.entries(scopes[signer] ?? {})) {
      if (!allowed.includes(document[name])) throw new Error(`its key is trusted for another ${name} than ${document[name]}`);
    }
  }
}

// The payload of an envelope on which every signature is by a different one of `keys`.
export async function openEnvelope(envelope, type, keys) {
  if (envelope.payloadType !== type) throw new Error(`its type is ${envelope.payloadType}, expected ${type}`);
  const payload = fromBase64(envelope.payload);
  const message = pae(type, payload);
  const signers = new Map();
  if (!Array.isArray(envelope.signatures) || envelope.signatures.length === 0) throw new Error("it is not signed");
  const known = new Map();
  for (const key of keys) known.set(await keyId(key), key);
  for (const signature of envelope.signatures) {
    const key = known.get(signature.keyid);
    if (key === undefined) throw new Error(`it is signed by ${signature.keyid ?? "a key without an id"}, which is not trusted`);
    if (signers.has(signature.keyid)) throw new Error("one key has signed twice");
    if (!(await verifyEd25519(key, message, fromBase64(signature.sig)))) {
      throw new Error(`the signature does not verify under ${signature.keyid}`);
    }
    signers.set(signature.keyid, key);
  }
  return { payload, signers: [...signers.keys()] };
}

// C2SP signed-note: the text, and its signature lines.
export function readNote(bytes) {
  const whole = strictText(bytes);
  const blank = whole.lastIndexOf("\n\n");
  if (blank < 0 || !whole.endsWith("\n")) throw new Error("the checkpoint is not a signed note");
  const lines = whole.slice(blank + 2, -1).split("\n");
  const signatures = lines.map((line) => {
    const match = /^— ([^ ]+) ([^ ]+)$/u.exec(line);
    if (match === null) throw new Error("the checkpoint has a line that is no signature");
    const data = fromBase64(match[2]);
    return { name: match[1], keyId: data.slice(0, 4), signature: data.slice(4) };
  });
  return { text: whole.slice(0, blank + 1), signatures };
}

// C2SP tlog-checkpoint: origin, size, root.
export function readCheckpoint(text) {
  const lines = text.split("\n");
  if (lines.length !== 4 || lines[3] !== "") throw new Error("a checkpoint has exactly three lines");
  if (!/^(0|[1-9][0-9]{0,18})$/.test(lines[1])) throw new Error("the checkpoint's size is not a number");
  const root = fromBase64(lines[2]);
  if (root.length !== 32) throw new Error("the checkpoint's root does not measure 32 bytes");
  return { origin: lines[0], size: BigInt(lines[1]), root };
}

export async function noteKeyId(name, key, kind = ED25519) {
  return (await sha256(joined(utf8(name), Uint8Array.of(10, kind), key))).slice(0, 4);
}

// C2SP signed-note, "Signatures": unknown lines are skipped, a line by a known key that does not verify condemns it.
export async function verifyNote(note, name, keys) {
  const known = await Promise.all(keys.map(async (key) => ({ key, id: await noteKeyId(name, key) })));
  const signers = [];
  for (const line of note.signatures) {
    const found = known.find(({ id }) => line.name === name && sameBytes(id, line.keyId));
    if (found === undefined) continue;
    if (!(await verifyEd25519(found.key, utf8(note.text), line.signature))) {
      throw new Error("the log's signature does not verify");
    }
    signers.push(await keyId(found.key));
  }
  if (signers.length === 0) throw new Error(`no trusted key of ${name} has signed it`);
  return signers;
}

// A C2SP verifier key: <name>+<key id>+<base64 of type and key>.
export function readVerifierKey(text) {
  const [name, id, ...rest] = text.split("+");
  const material = fromBase64(rest.join("+"));
  if (material.length !== 33) throw new Error("a verifier key does not measure 33 bytes");
  return { name, id, kind: material[0], key: material.slice(1) };
}

// C2SP tlog-cosignature: when which of `witnesses` cosigned the note.
export async function cosigners(note, witnesses) {
  const found = [];
  for (const witness of witnesses) {
    const id = await noteKeyId(witness.name, witness.key, COSIGNATURE);
    for (const line of note.signatures.filter((each) => each.name === witness.name && sameBytes(each.keyId, id))) {
      if (line.signature.length !== 72) throw new Error(`the cosignature by ${witness.name} is malformed`);
      const bytes = line.signature;
      const seconds = new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0);
      const message = utf8(`cosignature/v1\ntime ${seconds}\n${note.text}`);
      if (!(await verifyEd25519(witness.key, message, bytes.slice(8)))) {
        throw new Error(`the cosignature by ${witness.name} does not verify`);
      }
      found.push({ name: witness.name, seconds: Number(seconds) });
    }
  }
  return found;
}

// The JSON document in bytes; its spelling is not checked again, its hash and signature are.
export function readJson(bytes) {
  return JSON.parse(strictText(bytes));
}
