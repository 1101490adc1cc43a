// A worker of BullMQ for Node beside claimers of ours, which records its runs as tests/faults/lane_claimer.py does.
//
// `node lanes.mjs URL PREFIX QUEUE FOLDER`. It runs until the file `stop` is in the folder. Node does not tell when a
// job was claimed, only that it was before its handler began: by less than CLAIMED_BEFORE_S.

import { existsSync, openSync, writeSync } from "node:fs";
import { Worker } from "bullmq";
import { Redis } from "ioredis";

const [url, prefix, queue, folder] = process.argv.slice(2);
const CLAIMED_BEFORE_S = 1;
const LEASE_S = 1.5;
const RUNS_MS = 8;

const file = openSync(`${folder}/claims-${process.pid}`, "a");
const now = () => Number(process.hrtime.bigint()) / 1e9;
const record = (what) => writeSync(file, `${JSON.stringify(what)}\n`);
const claims = new Map();
const ended = (id, answer) => record({ type: "ended", id, claim: claims.get(id), at: now(), answer });

async function run(job) {
  const { id, attemptsStarted: claim } = job;
  claims.set(id, claim);
  const returned = now();
  const called = returned - CLAIMED_BEFORE_S;
  const is_recovered = job.stalledCounter > 0;
  const times = { called, returned, admitted: called, lease_ends: called + LEASE_S };
  record({ type: "begun", lane: job.data.lane, id, claim, ...times, is_recovered });
  await new Promise((resolve) => setTimeout(resolve, Math.random() * RUNS_MS));
  record({ type: "ending", id, claim, at: now(), outcome: "succeeded" });
}

const connection = new Redis(url, { maxRetriesPerRequest: null });
const leases = { lockDuration: LEASE_S * 1e3, stalledInterval: 1_000, maxStalledCount: 50 };
const worker = new Worker(queue, run, { connection, prefix, concurrency: 8, ...leases });
worker.on("completed", (job) => ended(job.id, "done"));
worker.on("error", (error) => {
  // A job was cancelled while it ran, or its lease has ended: `lane_records` tells whether that is so.
  const lost = /^(?:Missing lock|Lock mismatch|could not renew lock) for job ([\w-]+)/.exec(error.message);
  if (lost === null) console.error(String(error));
  else ended(lost[1], "lost");
});

setInterval(async () => {
  if (!existsSync(`${folder}/stop`)) return;
  await worker.close();
  process.exit(0);
}, 100);
