// What the scripts on PostgreSQL share.
import pg from "pg";

/** `looking` of `measures`, by a query whose `any` says whether the database holds a live job. */
export const lookingFor = (left) => async (url) => {
  const client = new pg.Client(url);
  await client.connect();
  return { isLeft: async () => (await client.query(left)).rows[0].any, close: () => client.end() };
};
