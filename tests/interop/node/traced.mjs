// A Node application on BullMQ with bullmq-otel, driven by lines of JSON: it adds jobs inside a span `request`, works them,
// and tells its spans.
//
// `node traced.mjs URL PREFIX`. A command: {id, op, queue, ...}; an answer: {id, value} or {id, error}.

import { createInterface } from "node:readline";
import { context, propagation, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { BasicTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { Queue, Worker } from "bullmq";
import { BullMQOtel } from "bullmq-otel";
import { Redis } from "ioredis";

const [url, prefix] = process.argv.slice(2);
const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

const exporter = {
  export(spans, done) {
    for (const span of spans) {
      const { traceId, spanId } = span.spanContext();
      const parent = span.parentSpanContext?.spanId ?? null;
      tell({ event: "span", name: span.name, job: span.attributes["bullmq.job.id"], trace: traceId, span: spanId, parent });
    }
    done({ code: 0 });
  },
  shutdown: async () => {},
};

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
propagation.setGlobalPropagator(new W3CTraceContextPropagator());
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));

const telemetry = new BullMQOtel("node-app");
const connection = new Redis(url, { maxRetriesPerRequest: null });
const options = { connection, prefix, telemetry };

const inSpan = (name, work) =>
  trace.getTracer("node-app").startActiveSpan(name, (span) => work().finally(() => span.end()));

const ops = {
  add: ({ queue, name, opts }) => inSpan("request", async () => (await new Queue(queue, options).add(name, {}, opts)).id),
  schedule: async ({ queue, repeat, template }) => {
    await new Queue(queue, options).upsertJobScheduler("s", repeat, template);
  },
  work: async ({ queue }) => {
    await new Worker(queue, async (job) => job.attemptsMade, options).waitUntilReady();
  },
};

async function answer(command) {
  try {
    tell({ id: command.id, value: (await ops[command.op](command)) ?? null });
  } catch (error) {
    tell({ id: command.id, error: `${error.name}: ${error.message}` });
  }
}

for await (const line of createInterface({ input: process.stdin })) answer(JSON.parse(line));
process.exit(0);
