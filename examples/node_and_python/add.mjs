// Adds jobs from Node, and waits for their results, wherever they run. README.md says how to run it.

import { Queue, QueueEvents } from "bullmq";

const connection = { url: process.env.REDIS_URL ?? "redis://localhost:6379" };
const shop = new Queue("shop", { connection });
const python = new Queue("python", { connection });
// From the first event on. By default, QueueEvents misses what happens between its start and its first read.
const events = { connection, lastEventId: "0-0" };
const ends = { shop: new QueueEvents("shop", events), python: new QueueEvents("python", events) };
await Promise.all([ends.shop.waitUntilReady(), ends.python.waitUntilReady()]);

const items = ["tea", "coffee", "milk"];
const jobs = await Promise.all(items.map((item) => shop.add("price", { item }, { attempts: 3 })));
for (const job of jobs) console.log(`price of ${job.data.item}: ${await job.waitUntilFinished(ends.shop, 30_000)}`);

const invoice = await python.add("invoice", { items });
console.log(`invoice: ${await invoice.waitUntilFinished(ends.python, 30_000)}`);

await Promise.all([shop.close(), python.close(), ends.shop.close(), ends.python.close()]);
