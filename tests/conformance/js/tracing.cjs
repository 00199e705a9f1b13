// The official client with its tracing plugin: sends or receives two events and prints its spans.

const { registerInstrumentations } = require("@opentelemetry/instrumentation");
const {
  InMemorySpanExporter,
  NodeTracerProvider,
  SimpleSpanProcessor,
} = require("@opentelemetry/sdk-trace-node");
const {
  createAzureSdkInstrumentation,
} = require("@azure/opentelemetry-instrumentation-azure-sdk");

const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
provider.register();
registerInstrumentations({ instrumentations: [createAzureSdkInstrumentation()] });

// After the instrumentation: it is installed while the client is loaded.
const {
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} = require("@azure/event-hubs");

async function send() {
  const client = new EventHubProducerClient(process.env.CONNECTION);
  await client.sendBatch([{ body: "a" }, { body: "b" }], { partitionId: "0" });
  await client.close();
}

async function receive() {
  const client = new EventHubConsumerClient("$Default", process.env.CONNECTION);
  let count = 0;
  await new Promise((resolve, reject) => {
    client.subscribe(
      "0",
      {
        processEvents: async (events) => {
          count += events.length;
          if (count >= 2) setImmediate(resolve);
        },
        processError: async (error) => reject(error),
      },
      { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1 },
    );
  });
  await client.close();
}

async function main() {
  await { send, receive }[process.argv[2]]();
  const spans = exporter.getFinishedSpans().map((span) => ({
    name: span.name,
    context: span.spanContext(),
    links: span.links.map((link) => link.context),
  }));
  console.log(JSON.stringify(spans));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
