// Vercel's AI SDK by argv[2]: chat, responses, messages, stream (of responses).
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { NAMES, PARAMETERS, PROMPT, RUN, SYSTEM, THEN } from "./task.mjs";

const way = process.argv[2];
const openai = createOpenAI();
const model = {
  chat: () => openai.chat("policy"),
  responses: () => openai.responses("policy"),
  stream: () => openai.responses("policy"),
  // This one's base URL has its /v1.
  messages: () => createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` })("policy"),
}[way]();
const tools = Object.fromEntries(
  NAMES.map((name) => [
    name,
    tool({ description: name, inputSchema: jsonSchema(PARAMETERS), execute: async (given) => RUN[name](given) }),
  ]),
);
const messages = [];
const texts = [];
for (const content of [PROMPT, ...THEN]) {
  messages.push({ role: "user", content });
  const asked = { model, system: SYSTEM, messages, tools, stopWhen: stepCountIs(5) };
  const answer = way === "stream" ? streamText(asked) : await generateText(asked);
  texts.push(await answer.text);
  messages.push(...(await answer.response).messages);
}
console.log(JSON.stringify(texts));
