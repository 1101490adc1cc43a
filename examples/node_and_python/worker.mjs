// The worker of the Node side. README.md says how to run it.

import { Worker } from "bullmq";

const connection = { url: process.env.REDIS_URL ?? "redis://localhost:6379" };
const prices = { tea: 3, coffee: 4, milk: 1 };

// BullMQ gives a worker all jobs of its queue. A name that it does not know is an error, not a result.
async function run(job) {
  if (job.name !== "price") throw new Error(`there is no handler for ${job.name}`);
  return `${prices[job.data.item]} (Node)`;
}

const worker = new Worker("shop", run, { connection });
worker.on("error", (error) => console.error(error.message));
worker.on("ready", () => console.log("working"));

// Ends after the jobs that run now, as a worker of Jobmill does.
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => worker.close().then(() => process.exit(0)));
