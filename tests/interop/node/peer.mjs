// A Node application on BullMQ, driven by lines of JSON: it adds jobs, works them, listens to events and looks.
//
// `node peer.mjs URL PREFIX [bullmq5]`. A command: {id, op, queue, ...}; an answer: {id, value} or {id, error}. What
// workers and listeners see comes in between, as {event, ...}. Commands run side by side.

import { createInterface } from "node:readline";
import { Redis } from "ioredis";

const [url, prefix, library = "bullmq"] = process.argv.slice(2);
const { FlowProducer, Queue, QueueEvents, Worker } = await import(library);

const connection = new Redis(url, { maxRetriesPerRequest: null });
const queues = new Map();
const listeners = new Map();
const workers = [];
const completed = new Map();

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function quiet(emitter) {
  emitter.on("error", (error) => tell({ event: "error", text: `${error.name}: ${error.message}` }));
  return emitter;
}

function queueOf({ queue }) {
  if (!queues.has(queue)) queues.set(queue, quiet(new Queue(queue, { connection, prefix })));
  return queues.get(queue);
}

// Handlers by name: what a job of this name does in Node.
const handlers = {
  send: async (job) => `Node sent ${job.id}`,
  slow: async (job) => {
    await pause(job.data.node_ms ?? job.data.ms);
    return job.data.ms;
  },
  flaky: async (job) => {
    if (job.attemptsMade < job.data.failures) throw new Error(`attempt ${job.attemptsMade + 1} is no good`);
    return job.attemptsMade;
  },
  broken: async () => {
    throw new Error("always broken");
  },
  // Counts how many run at once, and the most that ever did.
  counted: async (job) => {
    const { key, lane, ms, failures } = job.data;
    await connection.zadd(`${key}:most`, "GT", await connection.incr(`${key}:${lane}`), lane);
    await pause(ms);
    await connection.decr(`${key}:${lane}`);
    if (job.attemptsMade < failures) throw new Error("no luck");
    return "Node";
  },
};

async function handle(job) {
  tell({ event: "run", queue: job.queueName, job: job.id, name: job.name, at: Date.now(), attempt: job.attemptsMade + 1 });
  const answer = await (handlers[job.name] ?? handlers.send)(job);
  tell({ event: "ran", queue: job.queueName, job: job.id, name: job.name });
  return answer;
}

const shown = ({ job, children = [] }) => [job.id, children.map(shown).sort()];

const ops = {
  add: async (about) => {
    const job = await queueOf(about).add(about.name, about.data, about.opts);
    return { id: job.id, at: Date.now() };
  },
  bulk: async (about) => (await queueOf(about).addBulk(about.jobs)).map((job) => job.id),
  flow: async (about) => (await new FlowProducer({ connection, prefix }).add(about.tree)).job.id,
  schedule: async (about) => (await queueOf(about).upsertJobScheduler(about.scheduler, about.repeat, about.template)).id,
  schedulers: async (about) => queueOf(about).getJobSchedulers(),

  work: async (about) => {
    const worker = quiet(new Worker(about.queue, handle, { connection, prefix, ...about.opts }));
    worker.on("stalled", (job) => tell({ event: "stalled", job }));
    workers.push(worker);
    await worker.waitUntilReady();
  },
  rest: async () => {
    await Promise.all(workers.splice(0).map((worker) => worker.close()));
  },

  listen: async (about) => {
    // From now on, not from the first read on, which comes later.
    const last = await connection.xrevrange(`${prefix}:${about.queue}:events`, "+", "-", "COUNT", 1);
    const from = { connection: connection.duplicate(), prefix, lastEventId: last[0]?.[0] ?? "0-0" };
    const events = quiet(new QueueEvents(about.queue, from));
    listeners.set(about.queue, events);
    events.on("completed", ({ jobId }) => completed.set(jobId, (completed.get(jobId) ?? 0) + 1));
    events.on("progress", ({ jobId, data }) => tell({ event: "progress", job: jobId, data }));
    events.on("failed", ({ jobId, failedReason }) => tell({ event: "failed", job: jobId, reason: failedReason }));
    await events.waitUntilReady();
  },
  completed: async () => Object.fromEntries(completed),
  wait: async (about) => {
    const job = await queueOf(about).getJob(about.job);
    return job.waitUntilFinished(listeners.get(about.queue), about.ms ?? 30_000);
  },

  get: async (about) => {
    const job = await queueOf(about).getJob(about.job);
    if (!job) return null;
    const { returnvalue, failedReason, stacktrace, attemptsMade, attemptsStarted, stalledCounter } = job;
    const counted = { attemptsMade, attemptsStarted, stalledCounter };
    const { timestamp, processedBy } = job;
    return { state: await job.getState(), returnvalue, failedReason, stacktrace, ...counted, timestamp, processedBy };
  },
  opts: async (about) => (await queueOf(about).getJob(about.job)).opts,
  meta: async (about) => queueOf(about).getMeta(),
  children: async (about) => (await queueOf(about).getJob(about.job)).getChildrenValues(),
  ignored: async (about) => (await queueOf(about).getJob(about.job)).getIgnoredChildrenFailures(),
  tree: async (about) => shown(await new FlowProducer({ connection, prefix }).getFlow({ id: about.job, queueName: about.queue, prefix })),
  logs: async (about) => (await queueOf(about).getJobLogs(about.job)).logs,
  counts: async (about) => queueOf(about).getJobCounts(),
  workers: async (about) => (await queueOf(about).getWorkers()).map((worker) => worker.rawname.split(":w:")[1] ?? null),
  remove: async (about) => (await queueOf(about).getJob(about.job)).remove(),
  retry: async (about) => (await queueOf(about).getJob(about.job)).retry(about.state),
  pause: async (about) => queueOf(about).pause(),
  resume: async (about) => queueOf(about).resume(),
  limit: async (about) => queueOf(about).setGlobalConcurrency(about.value),
  rate: async (about) => queueOf(about).setGlobalRateLimit(about.max, about.ms),
  job: async (about) => (await queueOf(about).getJob(about.job))[about.method](...(about.args ?? [])),
  queue: async (about) => queueOf(about)[about.method](...(about.args ?? [])),
  orphans: async (about) => queueOf(about).removeOrphanedJobs(),
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
