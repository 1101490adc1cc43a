// Graphile Worker's side of each measure: `node graphile.mjs COMMAND ARGUMENTS`; the last line of stdout is the answer.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { readSync } from "node:fs";
import pg from "pg";

// The words of bench/child.py.
const [READY, BEGUN, SETTLED] = ["ready\n", "begun\n", "settled\n"];
const LEFT = "select exists (select from graphile_worker._private_jobs) as any";
const LOOK_MS = 1;
const LIMIT_MS = 300_000;

const say = (word) => process.stdout.write(word); // to a pipe it is synchronous
/** A moment at which the parent looks at the server first. */
const halt = (word) => {
  say(word);
  readSync(0, Buffer.alloc(1));
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const quiet = new Logger(() => () => {});
const wallNs = () => Math.round((performance.timeOrigin + performance.now()) * 1e6);

/** Seconds and CPU of this process from now on; call it with the number of jobs for what they took. */
function stopwatch() {
  const cpu = process.cpuUsage();
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1e3;
  const ran = (jobs) => {
    const { user, system } = process.cpuUsage(cpu);
    return { jobs, seconds: seconds(), cpu_seconds: (user + system) / 1e6 };
  };
  return { seconds, ran };
}

/** A worker that runs; `worker` are options of its preset. */
const work = (url, worker, taskList) =>
  run({
    taskList,
    parsedCronItems: [],
    noHandleSignals: true,
    preset: { worker: { connectionString: url, logger: quiet, ...worker } },
  });

/** What enqueues, given to `use`; its answer is how many jobs were enqueued until the clock was stopped. */
async function enqueueing(url, use) {
  const utils = await makeWorkerUtils({ connectionString: url, logger: quiet });
  await utils.withPgClient((client) => client.query("select 1"));
  halt(BEGUN);
  const watch = stopwatch();
  const ran = watch.ran(await use(utils, watch));
  halt(SETTLED);
  await utils.release();
  return ran;
}

const commands = {
  /** Its tables. */
  async migrate({ url }) {
    await runMigrations({ connectionString: url, logger: quiet });
    return null;
  },

  /** One worker runs so many no-op jobs; the clock stops when the database holds none. */
  async drain({ url, jobs, worker }) {
    const client = new pg.Client(url);
    await client.connect();
    await client.query(LEFT);
    let ran = 0;
    let watch, last;
    const allRan = new Promise((resolve) => (last = resolve));
    const noop = async () => {
      ran += 1;
      if (ran === 1) {
        halt(BEGUN);
        watch = stopwatch();
      }
      if (ran === jobs) last();
    };
    const runner = await work(url, worker, { noop });
    await allRan;
    while ((await client.query(LEFT)).rows[0].any) await sleep(LOOK_MS);
    const answer = watch.ran(jobs);
    halt(SETTLED);
    await runner.stop();
    await client.end();
    return answer;
  },

  /** Each caller enqueues one job, awaits the answer, and enqueues the next. */
  enqueue({ url, callers, jobs, seconds }) {
    return enqueueing(url, async (utils, watch) => {
      let begun = 0;
      const call = async () => {
        while (begun < jobs && watch.seconds() < seconds) {
          begun += 1;
          await utils.addJob("noop", {});
        }
      };
      await Promise.all(Array.from({ length: callers }, call));
      return begun;
    });
  },

  /** One caller hands so many jobs in with each call. */
  bulk({ url, size, jobs, seconds }) {
    return enqueueing(url, async (utils, watch) => {
      let done = 0;
      while (done < jobs && watch.seconds() < seconds) {
        await utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: {} })));
        done += size;
      }
      return done;
    });
  },

  /** The worker's side of the pickups: says that it is ready, and when it started each job. */
  async pickup({ url, jobs, seconds, worker }) {
    const started = Array(jobs).fill(0);
    let left = jobs;
    let last;
    const allStarted = new Promise((resolve) => (last = resolve));
    const pick = async ({ number }) => {
      started[number] = wallNs();
      left -= 1;
      if (!left) last();
    };
    const runner = await work(url, worker, { pick });
    await sleep(1_000); // it does not say when it listens
    say(READY);
    await Promise.race([allStarted, sleep(seconds * 1_000)]);
    await runner.stop();
    return started;
  },
};

const [name, given] = process.argv.slice(2);
setTimeout(() => {
  console.error(`${name}: longer than ${LIMIT_MS} ms`);
  process.exit(1);
}, LIMIT_MS).unref();
const answer = await commands[name](JSON.parse(given));
process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
