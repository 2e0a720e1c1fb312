// Vercel's AI SDK by argv[2]: chat, responses, messages, stream (of responses).
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { NAMES, PARAMETERS, PROMPT, RUN, SYSTEM } from "./task.mjs";

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
const asked = { model, system: SYSTEM, prompt: PROMPT, tools, stopWhen: stepCountIs(5) };
console.log(way === "stream" ? await streamText(asked).text : (await generateText(asked)).text);
