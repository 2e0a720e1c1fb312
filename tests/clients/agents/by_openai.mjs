// OpenAI's client for Node by argv[2]: chat, stream (of chat), responses, stored (names the response before).
import OpenAI from "openai";
import { NAMES, PARAMETERS, PROMPT, RUN, SYSTEM, THEN } from "./task.mjs";

const client = new OpenAI();
const way = process.argv[2];
const then = [...THEN];
const texts = [];

async function chat() {
  const messages = [{ role: "system", content: SYSTEM }, { role: "user", content: PROMPT }];
  const tools = NAMES.map((name) => ({ type: "function", function: { name, parameters: PARAMETERS } }));
  for (;;) {
    const asked = { model: "policy", messages, tools };
    const completion =
      way === "stream"
        ? await client.chat.completions.stream(asked).finalChatCompletion()
        : await client.chat.completions.create(asked);
    const message = completion.choices[0].message;
    messages.push(message);
    if (!message.tool_calls?.length) {
      texts.push(message.content);
      if (!then.length) return;
      messages.push({ role: "user", content: then.shift() });
    }
    for (const call of message.tool_calls ?? []) {
      const content = RUN[call.function.name](JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function responses() {
  const tools = NAMES.map((name) => ({ type: "function", name, parameters: PARAMETERS, strict: false }));
  let input = [{ role: "user", content: PROMPT }];
  let previous_response_id;
  for (;;) {
    const asked = { model: "policy", instructions: SYSTEM, input, tools, previous_response_id };
    const answer = await client.responses.create(asked);
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) {
      texts.push(answer.output_text);
      if (!then.length) return;
    }
    const told = !calls.length ? [{ role: "user", content: then.shift() }] : calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: RUN[call.name](JSON.parse(call.arguments)),
    }));
    if (way === "stored") {
      previous_response_id = answer.id;
      input = told;
    } else input = [...input, ...answer.output, ...told];
  }
}

await (way === "chat" || way === "stream" ? chat() : responses());
console.log(JSON.stringify(texts));
