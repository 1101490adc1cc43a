// Graphile Worker's side of each measure: `node graphile.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { draining, holding, inBulk, main, oneByOne, sleep, starting, untilKilled, withGaps } from "./child.mjs";

const LEFT = "select exists (select from graphile_worker._private_jobs) as any";
const AT_ONCE = 1_000;
const noops = (size) => Array.from({ length: size }, () => ({ identifier: "noop", payload: {} }));
const quiet = new Logger(() => () => {});

/** A worker that runs. With a local queue it fetches that many jobs at a time, and completes them in batches. */
const work = (url, slots, { localQueue } = {}, taskList) => {
  const batches = localQueue ? { localQueue: { size: localQueue }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};
  const worker = { connectionString: url, logger: quiet, concurrentJobs: slots, ...batches };
  return run({ taskList, parsedCronItems: [], noHandleSignals: true, preset: { worker } });
};

/** What enqueues, given to `use`. */
async function enqueueing(url, use) {
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  await utils.withPgClient((client) => client.query("select 1"));
  const ran = await use(utils);
  await utils.release();
  return ran;
}

await main({
  /** Its tables and waiting jobs. */
  async fill({ url, jobs }) {
    await runMigrations({ connectionString: url, logger: quiet });
    await enqueueing(url, async (utils) => {
      for (let left = jobs; left > 0; left -= AT_ONCE) await utils.addJobs(noops(Math.min(AT_ONCE, left)));
    });
  },

  /** One worker runs the no-op jobs; the clock stops when the database holds none. */
  async drain({ url, jobs, slots, options }) {
    const client = new pg.Client(url);
    await client.connect();
    await client.query(LEFT);
    const clock = draining(jobs, async () => (await client.query(LEFT)).rows[0].any);
    const runner = await work(url, slots, options, { noop: async () => clock.run() });
    const answer = await clock.settled();
    await runner.stop();
    await client.end();
    return answer;
  },

  enqueue: ({ url, ...how }) => enqueueing(url, (utils) => oneByOne(() => utils.addJob("noop", {}), how)),

  bulk: ({ url, ...how }) => enqueueing(url, (utils) => inBulk(() => utils.addJobs(noops(how.size)), how)),

  /** The worker's side of the pickups: says that it is ready, and when it started each job. */
  async pickup({ url, jobs, seconds, slots, options }) {
    const starts = starting(jobs);
    const runner = await work(url, slots, options, { pick: async ({ number }) => starts.start(number) });
    await sleep(1_000); // it does not say when it listens
    const started = await starts.wait(seconds);
    await runner.stop();
    return started;
  },

  /** The client's side. */
  pickupEnqueue: ({ url, gaps }) =>
    enqueueing(url, (utils) => withGaps((number) => utils.addJob("pick", { number }), gaps)),

  hold: ({ url }) => enqueueing(url, (utils) => utils.addJob("hold", {}).then(() => null)),

  async work({ url, slots, path, options }) {
    await work(url, slots, options, { hold: holding(path) });
    await untilKilled();
  },
});
