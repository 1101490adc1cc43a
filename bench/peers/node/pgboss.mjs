// pg-boss's side of each measure: `node pgboss.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { PgBoss } from "pg-boss";
import { main, measures } from "./child.mjs";
import { lookingFor } from "./postgres.mjs";

const LEFT = "select exists (select from pgboss.job where name = 'noop' and state < 'completed') as any";
const AT_ONCE = 10_000;
const QUEUES = ["noop", "pick", "hold"];

/** Started. Its tables are there unless `migrate` says to make them. */
async function started(url, options = {}) {
  const boss = new PgBoss({ connectionString: url, migrate: false, schedule: false, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

/** Started, given to `use`, and stopped. */
async function enqueueing(url, use, options) {
  const boss = await started(url, options);
  const answer = await use(boss);
  await boss.stop({ graceful: false });
  return answer;
}

const add = (boss, name, data) => boss.send(name, data);
const addMany = (boss, size) => boss.insert("noop", Array.from({ length: size }, () => ({ data: {} })));

/** Fetches as many jobs as there are slots, again at once while fetches are full; NOTIFY wakes it. */
async function working(url, slots, name, run) {
  const boss = await started(url, { useListenNotify: true });
  await boss.work(
    name,
    { batchSize: slots, burstWhenBatchFull: true, burstWhenReadyExceeds: 1 },
    (jobs) => Promise.all(jobs.map(async (job) => run(job.data.number))),
  );
  return () => boss.stop({ graceful: false });
}

await main({
  ...measures({ enqueueing, add, addMany, working, looking: lookingFor(LEFT) }),

  /** Its tables and waiting jobs, with statistics: at 1 slot they keep it fetching. */
  fill: ({ url, jobs }) =>
    enqueueing(
      url,
      async (boss) => {
        for (const queue of QUEUES) await boss.createQueue(queue, { notify: true });
        for (let left = jobs; left > 0; left -= AT_ONCE) await addMany(boss, Math.min(AT_ONCE, left));
        await boss.supervise("noop");
      },
      { migrate: true, supervise: false },
    ),
});
