// Anthropic's client for Node by argv[2]: messages, stream.
import Anthropic from "@anthropic-ai/sdk";
import { NAMES, PARAMETERS, PROMPT, RUN, SYSTEM, THEN } from "./task.mjs";

const client = new Anthropic();
const messages = [{ role: "user", content: PROMPT }];
const then = [...THEN];
const texts = [];
const tools = NAMES.map((name) => ({ name, input_schema: PARAMETERS }));
for (;;) {
  const asked = { model: "policy", max_tokens: 500, system: SYSTEM, messages, tools };
  const answer =
    process.argv[2] === "stream"
      ? await client.messages.stream(asked).finalMessage()
      : await client.messages.create(asked);
  messages.push({ role: "assistant", content: answer.content });
  const calls = answer.content.filter((block) => block.type === "tool_use");
  if (!calls.length) {
    texts.push(answer.content.map((block) => block.text).join(""));
    if (!then.length) break;
    messages.push({ role: "user", content: then.shift() });
    continue;
  }
  const results = calls.map((call) => ({
    type: "tool_result",
    tool_use_id: call.id,
    content: RUN[call.name](call.input),
  }));
  messages.push({ role: "user", content: results });
}
console.log(JSON.stringify(texts));
