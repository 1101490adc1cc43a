// Graphile Worker's side of each measure: `node graphile.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { Logger, makeWorkerUtils, run as runWorker, runMigrations } from "graphile-worker";
import { main, measures } from "./child.mjs";
import { lookingFor } from "./postgres.mjs";

const LEFT = "select exists (select from graphile_worker._private_jobs) as any";
const AT_ONCE = 1_000;
const quiet = new Logger(() => () => {});

/** A worker that runs. With a local queue it fetches that many jobs at a time, and completes them in batches. */
async function working(url, slots, name, run, { localQueue } = {}) {
  const batches = localQueue ? { localQueue: { size: localQueue }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};
  const worker = { connectionString: url, logger: quiet, concurrentJobs: slots, ...batches };
  const taskList = { [name]: async ({ number }) => run(number) };
  const runner = await runWorker({ taskList, parsedCronItems: [], noHandleSignals: true, preset: { worker } });
  return () => runner.stop();
}

/** What enqueues, given to `use`. */
async function enqueueing(url, use) {
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  await utils.withPgClient((client) => client.query("select 1"));
  const ran = await use(utils);
  await utils.release();
  return ran;
}

const add = (utils, name, data) => utils.addJob(name, data);
const addMany = (utils, size) =>
  utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: {} })));

await main({
  ...measures({ enqueueing, add, addMany, working, looking: lookingFor(LEFT) }),

  /** Its tables and waiting jobs. */
  async fill({ url, jobs }) {
    await runMigrations({ connectionString: url, logger: quiet });
    await enqueueing(url, async (utils) => {
      for (let left = jobs; left > 0; left -= AT_ONCE) await addMany(utils, Math.min(AT_ONCE, left));
    });
  },
});
