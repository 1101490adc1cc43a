// bull-board on a free port of loopback: `node board.mjs URL PREFIX QUEUE...`; tells its port as an event, ends with stdin.

import { createBullBoard } from "@bull-board/api";
import { BullMQAdapter } from "@bull-board/api/bullMQAdapter";
import { ExpressAdapter } from "@bull-board/express";
import { Queue } from "bullmq";
import express from "express";
import { Redis } from "ioredis";

const [url, prefix, ...names] = process.argv.slice(2);
const connection = new Redis(url, { maxRetriesPerRequest: null });
const queues = names.map((name) => new BullMQAdapter(new Queue(name, { connection, prefix })));
const serverAdapter = new ExpressAdapter();
createBullBoard({ queues, serverAdapter });

const server = express()
  .use(serverAdapter.getRouter())
  .listen(0, "127.0.0.1", () => {
    process.stdout.write(`${JSON.stringify({ event: "serves", port: server.address().port })}\n`);
  });

process.stdin.on("end", () => process.exit(0)).resume();
