// How a document's values stand on the page: the same rules as services/explorer/pages.py.

// Letters that are invisible, or that turn the text around them, are shown as what they are.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

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
