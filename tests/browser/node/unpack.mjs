// Unpacks the Brotli files of a folder into another: node unpack.mjs FROM TO. Python has no Brotli.
import { createReadStream, createWriteStream, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [from, to] = process.argv.slice(2);
for (const file of readdirSync(from).filter((name) => name.endsWith(".br"))) {
  const target = createWriteStream(join(to, basename(file, ".br")), { mode: 0o755 });
  await pipeline(createReadStream(join(from, file)), createBrotliDecompress({ chunkSize: 2 ** 21 }), target);
}
