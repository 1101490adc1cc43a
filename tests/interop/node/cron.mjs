// cron-parser 5, which BullMQ 6 has, and 4.9, which BullMQ 5 has: the next occurrences of many expressions.
//
// stdin: a JSON list of [expression, tz, after ms, count]; stdout: for each, [those of 5, those of 4.9], ms or an error.

import { createRequire } from "node:module";
import { text } from "node:stream/consumers";

const require = createRequire(import.meta.url);
const five = createRequire(require.resolve("bullmq"))("cron-parser").CronExpressionParser.parse;
const four = createRequire(require.resolve("bullmq5"))("cron-parser").parseExpression;

function occurrences(parse, [expression, tz, after, count]) {
  try {
    const found = parse(expression, { currentDate: new Date(after), tz });
    return Array.from({ length: count }, () => found.next().getTime());
  } catch (error) {
    return `${error.message}`;
  }
}

const asked = JSON.parse(await text(process.stdin));
process.stdout.write(JSON.stringify(asked.map((one) => [occurrences(five, one), occurrences(four, one)])));
