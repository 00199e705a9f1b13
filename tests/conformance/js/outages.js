// Dropped connections: the client reconnects, and no event is lost or read twice.

import assert from "node:assert/strict";
import {
  ask,
  bodies,
  bufferedProducer,
  consumer,
  producer,
  quick,
  read,
  readers,
  readSome,
} from "./scenario.js";
import { MemoryStore } from "./store.js";

const partitionId = "0";
const send = (client, body) => client.sendBatch([{ body }], { partitionId });
// A reader whose link is gone retries when its wait for events ends.
const hasty = { maxWaitTimeInSeconds: 0.2 };
const drop = async () => assert.ok((await ask("drop")) > 0, "there was a connection to break");

export async function producerComesBack() {
  const client = producer();
  await send(client, "before");
  await drop();
  await send(client, "after");
  assert.deepEqual(bodies(await readSome(partitionId, 2)), ["before", "after"]);
}

export async function producerComesBackAgainAndAgain() {
  const client = producer();
  for (const round of [0, 1, 2, 3]) {
    await send(client, round);
    await drop();
  }
  await send(client, 4);
  assert.deepEqual(bodies(await readSome(partitionId, 5)), [0, 1, 2, 3, 4]);
}

// A send without an outcome may have arrived, and the client re-sends it. It is never lost.
export async function sendsUnderWay() {
  // A send in flight does not notice that its link is gone: it waits for its time-out.
  const client = producer({ retryOptions: { ...quick, timeoutInMs: 1500 } });
  await send(client, "first");
  const numbers = Array.from({ length: 100 }, (_, i) => i);
  const sending = Promise.all(numbers.map((number) => send(client, number)));
  await drop();
  await sending;
  await send(client, "last");
  const reading = read(consumer(), partitionId);
  await reading.when(() => reading.events.at(-1)?.body === "last");
  const found = new Set(bodies(reading.events));
  assert.ok(numbers.every((number) => found.has(number)));
}

export async function readerComesBack() {
  const client = producer();
  const reading = read(consumer(), partitionId, hasty);
  await send(client, 0);
  await reading.take(1);
  for (const round of [1, 2, 3]) {
    await drop();
    await send(client, round);
    await reading.when(() => reading.events.length > round);
  }
  assert.deepEqual(bodies(reading.events), [0, 1, 2, 3]);
  assert.deepEqual(
    reading.events.map((event) => event.sequenceNumber),
    [0, 1, 2, 3],
  );
}

export async function readerWithOwnerLevelComesBack() {
  const client = producer();
  const reading = read(consumer(), partitionId, { ...hasty, ownerLevel: 7 });
  await send(client, 0);
  await reading.take(1);
  await drop();
  await readers(1); // the dropped reader is removed, the same one is attached again
  await send(client, 1);
  await reading.when(() => reading.events.length > 1);
  assert.deepEqual(bodies(reading.events), [0, 1]);
}

export async function questionsAfterwards() {
  const client = producer();
  await client.getEventHubProperties();
  await drop();
  assert.equal((await client.getPartitionProperties("0")).isEmpty, true);
}

export async function bufferedProducerComesBack() {
  const client = bufferedProducer({
    maxWaitTimeInMs: 20,
    onSendEventsErrorHandler: async () => {},
  });
  await client.enqueueEvent({ body: 0 }, { partitionId });
  await client.flush();
  await drop();
  await client.enqueueEvent({ body: 1 }, { partitionId });
  await client.flush();
  assert.deepEqual(bodies(await readSome(partitionId, 2)), [0, 1]);
}

export async function balancedConsumerComesBack() {
  const options = { loadBalancingOptions: { updateIntervalInMs: 100 } };
  const reading = read(consumer({ store: new MemoryStore(), ...options }), null, hasty);
  const client = producer();
  await send(client, 0);
  await reading.when(() => reading.events.length === 1);
  await drop();
  await readers(1);
  await send(client, 1);
  await reading.when(() => reading.events.length === 2);
  assert.deepEqual(bodies(reading.events), [0, 1]);
}

// The service sometimes closes connections, with a reason and after its last frames.
export async function closedByTheHub() {
  const idle = producer();
  const reading = read(consumer(), partitionId, hasty);
  await send(idle, 0);
  await reading.take(1);
  assert.equal(await ask("close"), 2);
  // Another client, since a send that begins while its connection closes fails without a retry.
  await send(producer(), 1);
  await reading.when(() => reading.events.length > 1);
  await send(idle, 2);
  await reading.when(() => reading.events.length > 2);
  assert.deepEqual(bodies(reading.events), [0, 1, 2]);
}
