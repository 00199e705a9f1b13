// One legacy host. It prints a JSON line per event, and stops when its stdin ends.

const { EventProcessorHost } = require("@azure/event-processor-host");

const settings = JSON.parse(process.argv[2]);
const CHECKPOINT_MS = 1000;
const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const host = EventProcessorHost.createFromConnectionString(
  settings.name,
  settings.storage,
  settings.container,
  settings.connection,
  {
    leaseDuration: settings.leaseS,
    leaseRenewInterval: settings.renewS,
    startupScanDelay: 1,
    fastScanInterval: 1,
    slowScanInterval: 2,
    initialOffset: undefined,
    onEphError: (info) => print({ problem: `${info.action}: ${info.error}` }),
  },
);

const written = new Map();

async function onMessage(context, event) {
  print({ partition: context.partitionId, sequence: event.sequenceNumber, body: String(event.body) });
  if (Date.now() - (written.get(context.partitionId) || 0) < CHECKPOINT_MS) return;
  written.set(context.partitionId, Date.now());
  await context.checkpointFromEventData(event).catch((error) => print({ problem: String(error) }));
}

host
  .start(onMessage, (error) => print({ problem: String(error) }))
  .then(() => print({ started: true }))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });

process.stdin.resume();
process.stdin.on("end", async () => {
  await host.stop().catch((error) => print({ problem: String(error) }));
  process.exit(0);
});
