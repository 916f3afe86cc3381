// A chat as /v1/chat/completions streams it. Text is handed on as it comes, the rest when it is there.

export class Refused extends Error {}

export function authorized(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

export async function* chat(body, key, signal) {
  const headers = { "content-type": "application/json", ...authorized(key) };
  const answer = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Refused((await answer.json()).error.message);
  let open = "";
  for await (const piece of pieces(answer.body.getReader())) {
    open += piece;
    const events = open.split("\n\n");
    open = events.pop();
    for (const event of events) {
      const said = event.slice("data: ".length);
      if (said === "[DONE]") return;
      const value = JSON.parse(said);
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
