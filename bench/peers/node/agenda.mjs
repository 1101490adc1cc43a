// Agenda's side of each measure: `node agenda.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { MongoBackend, MongoChangeStreamNotificationChannel } from "@agendajs/mongo-backend";
import { Agenda } from "agenda";
import { MongoClient } from "mongodb";
import { draining, main, measures } from "./child.mjs";

const COLLECTION = "agendaJobs";
const AT_ONCE = 1_000;
// Each time it looks for jobs it begins to lock one after the other, beside what it began before.
const EVERY_MS = 100;

/** An agenda that is ready and does not work yet, given to `use`. The end of the process closes it: it cannot be stopped
 * without errors while it looks for jobs. */
async function withAgenda(url, options, use) {
  const client = await MongoClient.connect(url);
  const db = client.db();
  const { isNotified, ...others } = options;
  const notificationChannel = isNotified ? new MongoChangeStreamNotificationChannel({ db }) : undefined;
  const agenda = new Agenda({ backend: new MongoBackend({ mongo: db }), notificationChannel, ...others });
  agenda.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  await agenda.ready;
  return use(agenda, db.collection(COLLECTION));
}

/** Only the worker of pickups is notified. */
const working = (url, slots, name, run) =>
  withAgenda(url, { isNotified: name === "pick", maxConcurrency: slots }, async (agenda) => {
    agenda.define(name, async (job) => run(job.attrs.data.number), { concurrency: slots });
    await agenda.start();
    return async () => {};
  });

await main({
  ...measures({
    enqueueing: (url, use) => withAgenda(url, {}, use),
    add: (agenda, name, data) => agenda.now(name, data),
    working,
  }),

  /** Waiting jobs: copies of one of its own, because it has no bulk call. */
  fill: ({ url, jobs }) =>
    withAgenda(url, {}, async (agenda, collection) => {
      if (!jobs) return;
      await agenda.now("noop", {});
      const { _id, ...one } = await collection.findOne();
      for (let left = jobs - 1; left > 0; left -= AT_ONCE) {
        await collection.insertMany(Array.from({ length: Math.min(AT_ONCE, left) }, () => ({ ...one })));
      }
    }),

  /**
   * One process runs the no-op jobs; the clock stops when it has saved the last one as complete. It locks many jobs
   * before it runs the first, which is its work too: the clock starts when it does.
   */
  drain: ({ url, jobs, slots }) =>
    withAgenda(url, { processEvery: EVERY_MS, maxConcurrency: slots }, async (agenda) => {
      let saved = 0;
      const clock = draining(jobs, async () => saved < jobs);
      agenda.on("complete", () => (saved += 1));
      agenda.define("noop", async () => clock.run(), { concurrency: slots });
      clock.begin();
      await agenda.start();
      return clock.settled();
    }),
});
