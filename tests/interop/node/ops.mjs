// Performs one BullMQ operation for each line of JSON on stdin, and answers each with a line of JSON on stdout.
//
// `node ops.mjs [bullmq5]`. A command: {id, op, url, prefix, queue, now?, ...}. `now` sets the clock that BullMQ sees, so
// that two runs write the same times. `json` has more of the command, as text: what only JavaScript can hold. An answer:
// {id, value} or {id, error}.

import { createInterface } from "node:readline";

const [library = "bullmq"] = process.argv.slice(2);
const RealDate = Date;
let now = null;

globalThis.Date = class extends RealDate {
  constructor(...given) {
    super(...(given.length ? given : [now ?? RealDate.now()]));
  }

  static now() {
    return now ?? RealDate.now();
  }
};

const { DelayedError, FlowProducer, Queue, UnrecoverableError, WaitingChildrenError, WaitingError, Worker } =
  await import(library);
const { Redis } = await import("ioredis");

const made = new Map();
const running = new Map();
const ends = new Map();

function once(kind, about, make) {
  const key = [kind, about.url, about.prefix, about.queue, about.worker, JSON.stringify(about.workerOpts)].join(" ");
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

const connection = (about) =>
  once("connection", { url: about.url }, () => new Redis(about.url, { maxRetriesPerRequest: null }));

const queueOf = (about) =>
  once("queue", { ...about, worker: null, workerOpts: null }, () =>
    quiet(new Queue(about.queue, { connection: connection(about), prefix: about.prefix })),
  );

const producerOf = (about) =>
  once("flows", { url: about.url, prefix: about.prefix }, () =>
    quiet(new FlowProducer({ connection: connection(about), prefix: about.prefix })),
  );

const workerOf = (about) =>
  once("worker", about, () =>
    quiet(
      new Worker(about.queue, runAsTold, {
        connection: connection(about),
        prefix: about.prefix,
        autorun: false,
        name: about.worker,
        lockDuration: 15_000,
        ...about.workerOpts,
      }),
    ),
  );

// What goes wrong shows in the answer; an event of the same error would only end the process.
function quiet(emitter) {
  emitter.on("error", () => {});
  return emitter;
}

const where = (about, id) => [about.url, about.prefix, about.queue, id].join(" ");

function failure(end) {
  const error = end.unrecoverable ? new UnrecoverableError(end.error) : new Error(end.error);
  error.stack = end.stack ?? `Traceback of ${end.error}`;
  return error;
}

// The processor of all workers: ends the job as the command that settles it says.
async function runAsTold(job, token) {
  const { about, end } = ends.get(job.id);
  switch (end.how) {
    case "return":
      return end.value;
    case "throw":
      throw failure(end);
    case "wait":
      await job.moveToWait(token);
      throw new WaitingError();
    case "delay":
      await job.moveToDelayed(Date.now() + end.ms, token);
      throw new DelayedError();
    case "children":
      if (await job.moveToWaitingChildren(token)) throw new WaitingChildrenError();
      return end.value;
    case "limit":
      await workerOf(about).rateLimit(end.ms);
      throw Worker.RateLimitError();
  }
  throw new Error(`no such end: ${end.how}`);
}

// As the loop of a worker claims. Version 5 has a method of its own for it: its getNextJob also fails jobs that must fail.
function claimed(about) {
  const worker = workerOf(about);
  return (worker.getTracedNextJob ?? worker.getNextJob).call(worker, about.token, { block: false });
}

function started(about, job) {
  if (!job) return null;
  running.set(where(about, job.id), job);
  return job.id;
}

async function jobOf(about) {
  const job = await queueOf(about).getJob(about.job);
  if (!job) throw new Error(`no job ${about.job}`);
  return job;
}

// A flow as getFlow returns it: each job whole, and its children.
const shown = ({ job, children = [] }) => ({ ...job.toJSON(), children: children.map(shown) });

const ops = {
  add: async (about) => (await queueOf(about).add(about.name, about.data, about.opts)).id,
  bulk: async (about) => (await queueOf(about).addBulk(about.jobs)).map((job) => job.id),
  flow: async (about) => (await producerOf(about).add(about.tree)).job.id,
  getFlow: async (about) => shown(await producerOf(about).getFlow({ id: about.job, queueName: about.queue })),

  claim: async (about) => started(about, await claimed(about)),
  // With `next` the same call claims the next job, as a busy worker does.
  settle: async (about) => {
    const job = running.get(where(about, about.job));
    ends.set(job.id, { about, end: about.end });
    job.token = about.token;
    const next = await workerOf(about).processJob(job, about.token, () => about.next ?? false);
    running.delete(where(about, about.job));
    return started(about, next);
  },
  extend: async (about) => (await jobOf(about)).extendLock(about.token, about.ms),
  stalled: async (about) => {
    const worker = workerOf(about);
    await worker.waitUntilReady();
    await connection(about).del(`${about.prefix}:${about.queue}:stalled-check`); // at most one look per interval
    await worker.moveStalledJobsToWait();
    await connection(about).del(`${about.prefix}:${about.queue}:stalled-check`);
  },
  progress: async (about) => (await jobOf(about)).updateProgress(about.value),
  log: async (about) => (await jobOf(about)).log(about.line),

  promote: async (about) => (await jobOf(about)).promote(),
  promoteAll: async (about) => queueOf(about).promoteJobs(),
  changeDelay: async (about) => (await jobOf(about)).changeDelay(about.ms),
  changePriority: async (about) => (await jobOf(about)).changePriority(about.opts),
  remove: async (about) => queueOf(about).remove(about.job),
  state: async (about) => (await jobOf(about)).getState(),
  retry: async (about) => (await jobOf(about)).retry(about.state, about.opts),
  retryAll: async (about) => queueOf(about).retryJobs(about.opts),

  pause: async (about) => queueOf(about).pause(),
  resume: async (about) => queueOf(about).resume(),
  drain: async (about) => queueOf(about).drain(about.delayed ?? false),
  clean: async (about) => queueOf(about).clean(about.grace, about.limit, about.state),
  rateLimit: async (about) => queueOf(about).rateLimit(about.ms),
  setRateLimit: async (about) => queueOf(about).setGlobalRateLimit(about.max, about.duration),
  removeRateLimit: async (about) => queueOf(about).removeGlobalRateLimit(),
  setConcurrency: async (about) => queueOf(about).setGlobalConcurrency(about.value),
  removeConcurrency: async (about) => queueOf(about).removeGlobalConcurrency(),
  removeDeduplication: async (about) => queueOf(about).removeDeduplicationKey(about.key),
  obliterate: async (about) => queueOf(about).obliterate({ force: true }),
  orphans: async (about) => queueOf(about).removeOrphanedJobs(),

  schedule: async (about) =>
    (await queueOf(about).upsertJobScheduler(about.scheduler, about.repeat, about.template))?.id ?? null,
  forget,
  unschedule: async (about) => queueOf(about).removeJobScheduler(about.scheduler),
};

// What a test made, but for connections: the next has another prefix.
async function forget({ prefix }) {
  const over = [...made].filter(([key]) => key.split(" ")[2] === prefix);
  for (const [key] of over) made.delete(key);
  await Promise.all(over.map(([, one]) => one.close()));
}

async function perform(command) {
  now = command.now ?? null;
  const op = ops[command.op];
  if (!op) throw new Error(`no such operation: ${command.op}`);
  return (await op(command)) ?? null;
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  Object.assign(command, JSON.parse(command.json ?? "{}"));
  let answer;
  try {
    answer = { id: command.id, value: await perform(command) };
  } catch (error) {
    answer = { id: command.id, error: `${error.name}: ${error.message}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
