// mongodb-cron's side of each measure: `node mongodb_cron.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
// The driver that mongodb-cron wants, beside the newer one that Agenda wants.
import { MongoClient } from "mongodb6";
import { MongoCron } from "mongodb-cron";
import { draining, main } from "./child.mjs";

const COLLECTION = "jobs";

/** The collection, given to `use`; the client is closed afterwards. */
async function collecting(url, use) {
  const client = await MongoClient.connect(url);
  const answer = await use(client.db().collection(COLLECTION), client);
  await client.close();
  return answer;
}

const fail = async (error) => {
  console.error(error);
  process.exit(1);
};

/** How long the server was at work for a collection so far, in microseconds. */
async function spent(client, collection) {
  const { totals } = await client.db("admin").command({ top: 1 });
  return totals[collection.namespace].total.time;
}

await main({
  /** Several schedulers run the documents; the clock stops when no document has a date. */
  drain: ({ url, jobs, slots }) =>
    collecting(url, (collection) =>
      collecting(url, async (looking) => {
        const isLeft = async () => (await looking.findOne({ sleepUntil: { $type: "date" } })) !== null;
        await isLeft();
        const clock = draining(jobs, isLeft);
        const config = { collection, onDocument: async () => clock.run(), onError: fail, idleDelay: 100 };
        const crons = Array.from({ length: slots }, () => new MongoCron(config));
        await Promise.all(crons.map((cron) => cron.start()));
        const answer = await clock.settled();
        await Promise.all(crons.map((cron) => cron.stop()));
        while (crons.some((cron) => cron.isProcessing())) await new Promise((resolve) => setTimeout(resolve, 10));
        return answer;
      }),
    ),

  /** Its own poll, several times; nothing is due. */
  poll: ({ url, polls }) =>
    collecting(url, async (collection, client) => {
      const cron = new MongoCron({ collection, onError: fail });
      await cron.lockNext();
      const before = await spent(client, collection);
      for (let n = 0; n < polls; n += 1) if (await cron.lockNext()) throw new Error("something was due");
      return ((await spent(client, collection)) - before) / polls / 1_000;
    }),
});
