// Runs one scenario: `node run.js send.js toPartition`. Its result goes to pytest.

import { closeAll, say } from "./scenario.js";

const [file, name] = process.argv.slice(2);
const scenarios = await import(`./${file}`);
try {
  say({ result: (await scenarios[name]()) ?? null });
} finally {
  await closeAll();
}
