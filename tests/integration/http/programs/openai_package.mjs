// What the npm package `openai` gets: whole, as a stream, parsed by a schema, and calls.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "Sun?" }];
const schema = {
  type: "object", properties: { verdict: { enum: ["sun", "rain"] } }, required: ["verdict"], additionalProperties: false,
};
const asked = { model: "tiny", messages, max_completion_tokens: 120, seed: 3 };
const whole = await client.chat.completions.create({ ...asked, n: 2 });
const pieces = ["", ""];
let usage = null;
const stream = await client.chat.completions.create({
  ...asked, n: 2, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  for (const choice of chunk.choices) pieces[choice.index] += choice.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
const format = { type: "json_schema", json_schema: { name: "verdict", strict: true, schema } };
const parsed = await client.chat.completions.parse({ ...asked, response_format: format });
const tools = [{ type: "function", function: { name: "judge", parameters: schema, strict: true } }];
const called = await client.chat.completions.create({ ...asked, tools, tool_choice: "required" });
const response = await client.responses.create({ model: "tiny", input: "Sun?", max_output_tokens: 8 });
console.log(JSON.stringify({
  same: whole.choices.every((choice) => choice.message.content === pieces[choice.index]),
  usage: usage.completion_tokens === whole.usage.completion_tokens,
  receipts: whole.kolm.receipts.length,
  verdict: parsed.choices[0].message.parsed.verdict,
  arguments: called.choices[0].message.tool_calls.map((call) => JSON.parse(call.function.arguments).verdict),
  text: typeof response.output_text,
}));
