// Vercel AI: generateText in a loop of steps; the planner's tool runs the expert. `ai` 5 and 6 trace by themselves,
// 7 by @ai-sdk/otel. Runs in a folder with its packages and imports nothing of ours; harness.py says what is expected.

import { appendFileSync } from 'node:fs';
import { createOpenAI } from '@ai-sdk/openai';
import { context, propagation } from '@opentelemetry/api';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { registerInstrumentations } from '@opentelemetry/instrumentation';
import { UndiciInstrumentation } from '@opentelemetry/instrumentation-undici';
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node';
import * as ai from 'ai';
import { z } from 'zod';

const env = process.env;
const isNew = env.RECORDED_INSTRUMENTATION === 'otel7';
const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
registerInstrumentations({ instrumentations: [new UndiciInstrumentation()] });
if (isNew) {
  const { OpenTelemetry } = await import('@ai-sdk/otel');
  ai.registerTelemetry(new OpenTelemetry());
}

const openai = createOpenAI({ baseURL: env.OPENAI_BASE_URL, apiKey: env.OPENAI_API_KEY });

function executed(tool, given, failed = false) {
  appendFileSync(env.RECORDED_TRUTH, JSON.stringify({ tool, arguments: given, failed }) + '\n');
}

const city = z.object({ city: z.string() });
const getWeather = ai.tool({
  description: 'The weather in a city.',
  inputSchema: city,
  execute: async given => {
    executed('get_weather', given);
    return `It is sunny in ${given.city}.`;
  },
});
const getTime = ai.tool({
  description: 'The local time in a city.',
  inputSchema: city,
  execute: async given => {
    executed('get_time', given, true);
    throw new Error(`no clock in ${given.city}`);
  },
});
const convert = ai.tool({
  description: 'Converts an amount of money.',
  inputSchema: z.object({ amount: z.number() }),
  execute: async given => {
    executed('convert', given);
    return `${given.amount} crowns are ${given.amount * 2} francs`;
  },
});
const askExpert = ai.tool({
  description: 'Asks the expert for money.',
  inputSchema: z.object({ request: z.string() }),
  execute: async given => {
    executed('ask_expert', given);
    return await run('expert', 'You are the agent expert. Convert the money.', { convert }, given.request);
  },
});

async function run(name, instructions, tools, prompt) {
  const telemetry = { isEnabled: true, functionId: name };
  const given = {
    model: openai.chat('policy'),
    prompt,
    tools,
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(10),
    ...(isNew ? { instructions, telemetry } : { system: instructions, experimental_telemetry: telemetry }),
  };
  if (env.RECORDED_STREAMS === '1') {
    return await ai.streamText(given).text;
  }
  return (await ai.generateText(given)).text;
}

const headers = env.TRACEPARENT ? { traceparent: env.TRACEPARENT, baggage: env.BAGGAGE } : {};
await context.with(propagation.extract(context.active(), headers), async () => {
  for (const trip of env.RECORDED_TRIPS.split(',')) {
    const tools = { get_weather: getWeather, get_time: getTime, ask_expert: askExpert };
    const planner = 'You are the agent planner. Use the tools, then ask the expert.';
    console.log(await run('planner', planner, tools, `Plan trip ${trip}.`));
  }
});
await provider.shutdown();
