// A chat as /v1/chat/completions streams it. Text is handed on as it comes, the rest when it is there.

export class Refused extends Error {}

const WHERE = "open the address that `kolm up` printed at its start, which ends with the key, or fill in another one";
const NO_KEY = `this page has no key: ${WHERE}`;
const UNKNOWN_KEY = `the key is not known here, revoked or expired: ${WHERE}`;

export function authorized(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

export async function* chat(body, key, signal) {
  const headers = { "content-type": "application/json", ...authorized(key) };
  const answer = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (answer.status === 401) throw new Refused(key ? UNKNOWN_KEY : NO_KEY);
  if (!answer.ok) throw new Refused((await answer.json()).error.message);
  let open = "";
  for await (const piece of pieces(answer.body.getReader())) {
    open += piece;
    const events = open.split("\n\n");
    open = events.pop();
    for (const event of events) {
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error) throw new Refused(value.error.message);
      yield value;
    }
  }
  throw new Refused("the stream ended before the answer did");
}

async function* pieces(reader) {
  const decoder = new TextDecoder();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    yield decoder.decode(read.value, { stream: true });
  }
}
