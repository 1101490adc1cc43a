// What the scripts share: words to the parent, a clock, callers that enqueue, and the command line of a script.
import { appendFileSync, readSync } from "node:fs";

// The words of bench/child.py.
const [READY, BEGUN, SETTLED] = ["ready\n", "begun\n", "settled\n"];
const LOOK_MS = 1;
const LIMIT_MS = 300_000;

const say = (word) => process.stdout.write(word); // to a pipe it is synchronous
/** A moment at which the parent looks at the server first. */
const halt = (word) => {
  say(word);
  readSync(0, Buffer.alloc(1));
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const wallNs = () => Math.round((performance.timeOrigin + performance.now()) * 1e6);

/** Seconds and CPU of this process from now on; `ran` returns what a number of jobs took. */
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

/**
 * The clock of a drain: every handler calls `run`; it stops when `isLeft` says that no job is live. It starts with
 * `begin`, or in the first handler.
 */
export function draining(jobs, isLeft) {
  let ran = 0;
  let watch, last;
  const allRan = new Promise((resolve) => (last = resolve));
  const begin = () => {
    halt(BEGUN);
    watch = stopwatch();
  };
  const run = () => {
    ran += 1;
    if (!watch) begin();
    if (ran === jobs) last();
  };
  const settled = async () => {
    await allRan;
    while (await isLeft()) await sleep(LOOK_MS);
    const answer = watch.ran(jobs);
    halt(SETTLED);
    return answer;
  };
  return { begin, run, settled };
}

/** What `use` took, given a watch; its answer is how many jobs were enqueued until the clock was stopped. */
async function metered(use) {
  halt(BEGUN);
  const watch = stopwatch();
  const ran = watch.ran(await use(watch));
  halt(SETTLED);
  return ran;
}

/** Each caller enqueues one job, awaits the answer, and enqueues the next. */
const oneByOne = (add, { callers, jobs, seconds }) =>
  metered(async (watch) => {
    let begun = 0;
    const call = async () => {
      while (begun < jobs && watch.seconds() < seconds) {
        begun += 1;
        await add();
      }
    };
    await Promise.all(Array.from({ length: callers }, call));
    return begun;
  });

/** One caller enqueues `size` jobs with each call. */
const inBulk = (add, { size, jobs, seconds }) =>
  metered(async (watch) => {
    let done = 0;
    while (done < jobs && watch.seconds() < seconds) {
      await add();
      done += size;
    }
    return done;
  });

/** Enqueue one numbered job after each gap (in seconds): when each call began, and when it returned. */
async function withGaps(add, gaps) {
  const pickups = { called: [], returned: [] };
  for (const [number, gap] of gaps.entries()) {
    await sleep(gap * 1_000);
    pickups.called.push(wallNs());
    await add(number);
    pickups.returned.push(wallNs());
  }
  return pickups;
}

/** When each job of a worker started, by its number; `wait` says that it is ready. */
function starting(jobs) {
  const started = Array(jobs).fill(0);
  let left = jobs;
  let last;
  const allStarted = new Promise((resolve) => (last = resolve));
  const start = (number) => {
    started[number] = wallNs();
    left -= 1;
    if (!left) last();
  };
  const wait = async (seconds) => {
    say(READY);
    await Promise.race([allStarted, sleep(seconds * 1_000)]);
    return started;
  };
  return { start, wait };
}

/** A handler that tells of its start in a file and then waits, for a worker that is going to be killed. */
const holding = (path) => () => {
  appendFileSync(path, "started\n");
  return new Promise(() => {});
};

/** Says that the worker is ready; it works until it is killed. */
const untilKilled = () => {
  say(READY);
  return new Promise(() => {});
};

/**
 * The commands that are alike for all. `enqueueing(url, use)` gives `use` a connected queue, and closes it;
 * `add(queue, name, data)` and `addMany(queue, size)` enqueue with it. `working(url, slots, name, run, options)` starts a
 * worker, which calls `run` with the number of each job, and answers how to close it. `looking(url)` answers `isLeft`,
 * which tells whether the database holds a live job, and `close`.
 */
export const measures = ({ enqueueing, add, addMany, working, looking }) => ({
  /** One worker runs the no-op jobs; the clock stops when the database holds none. */
  async drain({ url, jobs, slots, options }) {
    const look = await looking(url);
    await look.isLeft();
    const clock = draining(jobs, look.isLeft);
    const close = await working(url, slots, "noop", clock.run, options);
    const answer = await clock.settled();
    await close();
    await look.close();
    return answer;
  },

  enqueue: ({ url, ...how }) => enqueueing(url, (queue) => oneByOne(() => add(queue, "noop", {}), how)),

  bulk: ({ url, ...how }) => enqueueing(url, (queue) => inBulk(() => addMany(queue, how.size), how)),

  /** The worker's side of the pickups: says that it is ready, and when it started each job. */
  async pickup({ url, jobs, seconds, slots, options }) {
    const starts = starting(jobs);
    const close = await working(url, slots, "pick", starts.start, options);
    await sleep(1_000); // none of them says when it sleeps or listens
    const started = await starts.wait(seconds);
    await close();
    return started;
  },

  /** The client's side. */
  pickupEnqueue: ({ url, gaps }) =>
    enqueueing(url, (queue) => withGaps((number) => add(queue, "pick", { number }), gaps)),

  hold: ({ url }) => enqueueing(url, (queue) => add(queue, "hold", {}).then(() => null)),

  async work({ url, slots, path, options }) {
    await working(url, slots, "hold", holding(path), options);
    await untilKilled();
  },
});

/** Run the command that the command line names; the last line of stdout is its answer. */
export async function main(commands) {
  const [name, given] = process.argv.slice(2);
  setTimeout(() => {
    console.error(`${name}: longer than ${LIMIT_MS} ms`);
    process.exit(1);
  }, LIMIT_MS).unref();
  const answer = await commands[name](JSON.parse(given));
  process.stdout.write(`${JSON.stringify(answer ?? null)}\n`, () => process.exit(0));
}
