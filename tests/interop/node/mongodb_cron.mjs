// A Node application on mongodb-cron, driven by lines of JSON: `node mongodb_cron.mjs URL COLLECTION`.
//
// A command: {id, op, ...}; an answer: {id, value} or {id, error}. What its schedulers do comes in between, as {event, ...}.

import { createInterface } from "node:readline";
import { MongoClient } from "mongodb";
import { MongoCron } from "mongodb-cron";

const [url, name] = process.argv.slice(2);
const client = await MongoClient.connect(url);
const collection = client.db().collection(name);
const schedulers = [];

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const pick = (document, path) => path.split(".").reduce((value, step) => value?.[step], document);

function scheduler({ config }) {
  const path = config.sleepUntilFieldPath ?? "sleepUntil";
  return new MongoCron({
    collection,
    ...config,
    onDocument: async (document) => {
      const about = { job: document._id, slot: pick(document, path).getTime() };
      tell({ event: "run", ...about, at: Date.now() });
      await pause(document.theirs_ms ?? document.ms ?? 0);
      tell({ event: "end", ...about, at: Date.now() });
    },
    onError: async (error) => tell({ event: "error", text: `${error.name}: ${error.message}` }),
    onIdle: async () => tell({ event: "idle" }),
  });
}

const ops = {
  start: async (about) => {
    for (let n = 0; n < about.workers; n += 1) schedulers.push(scheduler(about));
    await Promise.all(schedulers.map((one) => one.start()));
  },
  // `stop` of mongodb-cron returns before a handler has ended.
  stop: async () => {
    await Promise.all(schedulers.map((one) => one.stop()));
    while (schedulers.some((one) => one.isProcessing())) await pause(10);
    schedulers.length = 0;
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
