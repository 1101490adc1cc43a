// BullMQ's side of each measure: `node bullmq.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import { main, measures } from "./child.mjs";

const QUEUE = "default";
const AT_ONCE = 1_000;

// A worker's connection must be without a limit of retries; a queue's may have any.
const connect = (url) => new Redis(url, { maxRetriesPerRequest: null });

/** A queue that is ready, given to `use`; everything is closed afterwards. */
async function enqueueing(url, use) {
  const connection = connect(url);
  const queue = new Queue(QUEUE, { connection });
  await queue.waitUntilReady();
  const answer = await use(queue);
  await queue.close();
  connection.disconnect();
  return answer;
}

const addMany = (queue, size) => queue.addBulk(Array.from({ length: size }, () => ({ name: "noop", data: {} })));

/** A worker with these slots and no other option, which runs until it is closed. */
async function working(url, slots, _name, run) {
  const connection = connect(url);
  const handler = async (job) => run(job.data.number);
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
async function looking(url) {
  const connection = connect(url);
  const isLeft = async () => {
    const lengths = await Promise.all(["wait", "active"].map((list) => connection.llen(`bull:${QUEUE}:${list}`)));
    return lengths.some((length) => length > 0);
  };
  return { isLeft, close: () => connection.disconnect() };
}

await main({
  ...measures({ enqueueing, add: (queue, name, data) => queue.add(name, data), addMany, working, looking }),

  /** Waiting jobs, with ids of its own. */
  fill: ({ url, jobs }) =>
    enqueueing(url, async (queue) => {
      for (let left = jobs; left > 0; left -= AT_ONCE) await addMany(queue, Math.min(AT_ONCE, left));
    }),
});
