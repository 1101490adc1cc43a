// BullMQ's side of each measure: `node bullmq.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import { draining, holding, inBulk, main, oneByOne, sleep, starting, untilKilled, withGaps } from "./child.mjs";

const QUEUE = "default";
const AT_ONCE = 1_000;

// A worker's connection must be without a limit of retries; a queue's may have any.
const connect = (url) => new Redis(url, { maxRetriesPerRequest: null });

/** A queue that is ready, given to `use`; everything is closed afterwards. */
async function queueing(url, use) {
  const connection = connect(url);
  const queue = new Queue(QUEUE, { connection });
  await queue.waitUntilReady();
  const answer = await use(queue, connection);
  await queue.close();
  connection.disconnect();
  return answer;
}

/** A worker with these slots and no other option, which runs until it is closed. */
async function working(url, slots, handler) {
  const connection = connect(url);
  const worker = new Worker(QUEUE, handler, { connection, concurrency: slots, autorun: false });
  worker.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  await worker.waitUntilReady();
  worker.run();
  return async () => {
    await worker.close();
    connection.disconnect();
  };
}

/** Whether a job waits or runs. */
async function isLeft(connection) {
  const lengths = await Promise.all(["wait", "active"].map((list) => connection.llen(`bull:${QUEUE}:${list}`)));
  return lengths.some((length) => length > 0);
}

const many = (size) => Array.from({ length: size }, () => ({ name: "noop", data: {} }));

await main({
  /** Waiting jobs, with ids of its own. */
  fill: ({ url, jobs }) =>
    queueing(url, async (queue) => {
      for (let first = 0; first < jobs; first += AT_ONCE) await queue.addBulk(many(Math.min(AT_ONCE, jobs - first)));
    }),

  /** One worker runs the no-op jobs; the clock stops when none waits or runs. */
  async drain({ url, jobs, slots }) {
    const looking = connect(url);
    const clock = draining(jobs, () => isLeft(looking));
    await isLeft(looking);
    const close = await working(url, slots, async () => clock.run());
    const answer = await clock.settled();
    await close();
    looking.disconnect();
    return answer;
  },

  enqueue: ({ url, ...how }) => queueing(url, (queue) => oneByOne(() => queue.add("noop", {}), how)),

  bulk: ({ url, ...how }) => queueing(url, (queue) => inBulk(() => queue.addBulk(many(how.size)), how)),

  /** The worker's side of the pickups: says that it is ready, and when it started each job. */
  async pickup({ url, jobs, seconds, slots }) {
    const starts = starting(jobs);
    const close = await working(url, slots, async (job) => starts.start(job.data.number));
    await sleep(1_000); // it does not say when it sleeps
    const started = await starts.wait(seconds);
    await close();
    return started;
  },

  /** The client's side. */
  pickupEnqueue: ({ url, gaps }) =>
    queueing(url, (queue) => withGaps((number) => queue.add("pick", { number }), gaps)),

  hold: ({ url }) => queueing(url, (queue) => queue.add("hold", {}).then(() => null)),

  async work({ url, slots, path }) {
    await working(url, slots, holding(path));
    await untilKilled();
  },
});
