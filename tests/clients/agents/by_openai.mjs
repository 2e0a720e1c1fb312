// OpenAI's client for Node by argv[2]: chat, stream (of chat), responses, stored (names the response before).
import OpenAI from "openai";
import { NAMES, PARAMETERS, PROMPT, RUN, SYSTEM } from "./task.mjs";

const client = new OpenAI();
const way = process.argv[2];

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
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
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
    if (!calls.length) return answer.output_text;
    const told = calls.map((call) => ({
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

console.log(await (way === "chat" || way === "stream" ? chat() : responses()));
