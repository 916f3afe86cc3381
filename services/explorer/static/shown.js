// How a document's values stand on the page: the same rules as services/explorer/pages.py.

// Letters that are invisible, or that turn the text around them, are shown as what they are. A list, since a browser's
// Unicode is another than Python's.
const HIDDEN =
  /[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb\u{110bd}\u{110cd}\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

export function shownText(value) {
  if (value === null) return "none";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.replace(HIDDEN, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

// Path to text, dots between names, of every field of a document; lists are one field.
export function shownFields(document, path = "") {
  const fields = new Map();
  for (const [name, value] of Object.entries(document)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [inner, text] of shownFields(value, `${path}${name}.`)) fields.set(inner, text);
    } else {
      fields.set(path + name, shownText(value));
    }
  }
  return fields;
}
