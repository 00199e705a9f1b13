// Runs one scenario: `node run.js send.js toPartition`. What it returns goes to the wrapper.

import { closeAll, say } from "./judge.js";

const [file, name] = process.argv.slice(2);
const scenarios = await import(`./${file}`);
try {
  say({ result: (await scenarios[name]()) ?? null });
} finally {
  await closeAll();
}
