// pg-boss's side of each measure: `node pgboss.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import pg from "pg";
import { PgBoss } from "pg-boss";
import { draining, holding, inBulk, main, oneByOne, sleep, starting, untilKilled, withGaps } from "./child.mjs";

const LEFT = "select exists (select from pgboss.job where name = 'noop' and state < 'completed') as any";
const AT_ONCE = 10_000;
const QUEUES = ["noop", "pick", "hold"];

/** Connected, given to `use`, and stopped. Its tables are there unless `migrate` says to make them. */
async function connected(url, use, options = {}) {
  const boss = new PgBoss({ connectionString: url, migrate: false, schedule: false, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  const answer = await use(boss);
  await boss.stop({ graceful: false });
  return answer;
}

/** Fetches as many jobs as there are slots, again at once while fetches are full; NOTIFY wakes it. */
const work = (boss, queue, slots, handle) =>
  boss.work(
    queue,
    { batchSize: slots, burstWhenBatchFull: true, burstWhenReadyExceeds: 1 },
    (jobs) => Promise.all(jobs.map(handle)),
  );

await main({
  /** Its tables and waiting jobs, with statistics: at 1 slot they keep it fetching. */
  fill: ({ url, jobs }) =>
    connected(
      url,
      async (boss) => {
        for (const queue of QUEUES) await boss.createQueue(queue, { notify: true });
        for (let left = jobs; left > 0; left -= AT_ONCE) {
          await boss.insert("noop", Array.from({ length: Math.min(AT_ONCE, left) }, () => ({ data: {} })));
        }
        await boss.supervise("noop");
      },
      { migrate: true, supervise: false },
    ),

  /** One worker runs the no-op jobs; the clock stops when the database holds no live job. */
  async drain({ url, jobs, slots }) {
    const client = new pg.Client(url);
    await client.connect();
    await client.query(LEFT);
    const clock = draining(jobs, async () => (await client.query(LEFT)).rows[0].any);
    const answer = await connected(
      url,
      async (boss) => {
        await work(boss, "noop", slots, async () => clock.run());
        return clock.settled();
      },
      { useListenNotify: true },
    );
    await client.end();
    return answer;
  },

  enqueue: ({ url, ...how }) => connected(url, (boss) => oneByOne(() => boss.send("noop", {}), how)),

  bulk: ({ url, ...how }) =>
    connected(url, (boss) => {
      const jobs = () => Array.from({ length: how.size }, () => ({ data: {} }));
      return inBulk(() => boss.insert("noop", jobs()), how);
    }),

  /** The worker's side of the pickups: says that it is ready, and when it started each job. */
  pickup: ({ url, jobs, seconds, slots }) => {
    const starts = starting(jobs);
    return connected(
      url,
      async (boss) => {
        await work(boss, "pick", slots, async (job) => starts.start(job.data.number));
        await sleep(1_000); // it does not say when it listens
        return starts.wait(seconds);
      },
      { useListenNotify: true },
    );
  },

  /** The client's side. */
  pickupEnqueue: ({ url, gaps }) =>
    connected(url, (boss) => withGaps((number) => boss.send("pick", { number }), gaps)),

  hold: ({ url }) =>
    connected(url, async (boss) => {
      await boss.send("hold", {});
    }),

  work: ({ url, slots, path }) =>
    connected(
      url,
      async (boss) => {
        await work(boss, "hold", slots, holding(path));
        await untilKilled();
      },
      { useListenNotify: true },
    ),
});
