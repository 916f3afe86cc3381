// What the npm package `@anthropic-ai/sdk` gets: whole, as events, calls and their results, counts, a refusal.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2].replace(/\/v1$/, ""), apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "Sun?" }];
const asked = { model: "tiny", max_tokens: 60, temperature: 0, messages };
const whole = await client.messages.create(asked);
const stream = client.messages.stream(asked);
let text = "";
stream.on("text", (piece) => { text += piece; });
const streamed = await stream.finalMessage();
const verdict = {
  type: "object", properties: { verdict: { enum: ["sun", "rain"] } }, required: ["verdict"], additionalProperties: false,
};
const tools = [{ name: "judge", description: "Judge", input_schema: verdict }];
const calling = { ...asked, max_tokens: 200, tools, tool_choice: { type: "any", disable_parallel_tool_use: true } };
const called = await client.messages.create(calling);
const call = called.content.find((block) => block.type === "tool_use");
const events = await client.messages.stream(calling).finalMessage();
const turns = [
  ...messages,
  { role: "assistant", content: called.content },
  { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "yes" }] },
];
const after = await client.messages.create({ ...calling, messages: turns, tool_choice: { type: "none" } });
const counted = await client.messages.countTokens({ model: "tiny", messages });
let refused = null;
try {
  await client.messages.create({ ...asked, model: "other" });
} catch (error) {
  refused = [error.constructor.name, error.status];
}
console.log(JSON.stringify({
  same: whole.content[0].text === text && text === streamed.content[0].text,
  usage: whole.usage.output_tokens === streamed.usage.output_tokens,
  counted: counted.input_tokens === whole.usage.input_tokens + (whole.usage.cache_read_input_tokens ?? 0),
  receipts: whole.kolm.receipts.length,
  verdict: call.input.verdict,
  "same call": events.content.find((block) => block.type === "tool_use").input.verdict === call.input.verdict,
  stopped: called.stop_reason,
  after: after.content[0].type,
  refused,
}));
