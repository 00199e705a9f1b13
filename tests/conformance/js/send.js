// Producers: every event arrives once, in order, in its partition.

import assert from "node:assert/strict";
import { mapPartitionKeyToId } from "./node_modules/@azure/event-hubs/dist/esm/impl/partitionKeyToIdMapper.js";
import { bodies, bufferedProducer, consumer, given, producer, read, readSome } from "./scenario.js";

const numbers = (count) => Array.from({ length: count }, (_, i) => i);

export async function single() {
  await producer().sendBatch([{ body: "hello" }], { partitionId: "0" });
  const [event, ...more] = await readSome("0", 1);
  assert.equal(event.body, "hello");
  assert.equal(event.sequenceNumber, 0);
  assert.equal(event.partitionKey, undefined);
  assert.ok(Math.abs(event.enqueuedTimeUtc - Date.now()) < 60_000);
  assert.equal(more.length, 0);
}

export async function batchKeepsItsOrder() {
  const client = producer();
  const batch = await client.createBatch({ partitionId: "1" });
  for (const number of numbers(500)) assert.ok(batch.tryAdd({ body: { number } }));
  await client.sendBatch(batch);
  const events = await readSome("1", 500);
  assert.deepEqual(
    bodies(events),
    numbers(500).map((number) => ({ number })),
  );
  assert.deepEqual(
    events.map((event) => event.sequenceNumber),
    numbers(500),
  );
  const offsets = events.map((event) => Number(event.offset));
  assert.ok(offsets.every((offset, i) => i === 0 || offset > offsets[i - 1]));
}

export async function toPartition() {
  const client = producer();
  for (const partitionId of given.partitions)
    await client.sendBatch([{ body: partitionId }], { partitionId });
  for (const partitionId of given.partitions)
    assert.deepEqual(bodies(await readSome(partitionId, 1)), [partitionId]);
}

export async function withoutPartitionTakesTurns() {
  const client = producer();
  for (const number of numbers(8)) await client.sendBatch([{ body: number }, { body: number }]);
  const reading = read(consumer(), null);
  const events = await reading.take(16);
  await reading.close();
  const counts = given.partitions.map((id) => events.filter((e) => e.partition === id).length);
  assert.deepEqual(counts, [4, 4, 4, 4]);
  for (const number of numbers(8)) {
    const homes = new Set(events.filter((e) => e.body === number).map((e) => e.partition));
    assert.equal(homes.size, 1, "a batch must not be torn apart");
  }
}

export async function batchFilledToItsLimit() {
  const client = producer();
  const batch = await client.createBatch({ partitionId: "0" });
  assert.equal(batch.maxSizeInBytes, 1024 * 1024);
  const body = Buffer.alloc(4000, "x");
  while (batch.tryAdd({ body })); // until it is full
  assert.ok(batch.sizeInBytes > batch.maxSizeInBytes - 5000);
  await client.sendBatch(batch);
  const events = await readSome("0", batch.count);
  assert.ok(events.every((event) => body.equals(event.body)));
}

export async function largeEvent() {
  const body = Buffer.from(Uint8Array.from({ length: 900_000 }, (_, i) => (i * 31) % 251));
  const client = producer();
  await client.sendBatch([{ body }], { partitionId: "0" });
  await client.sendBatch([{ body: "small" }], { partitionId: "0" });
  const [large, small] = await readSome("0", 2);
  assert.ok(body.equals(large.body));
  assert.equal(small.body, "small");
}

export async function oversizeIsRefused() {
  const client = producer();
  const tooMuch = client.sendBatch([{ body: Buffer.alloc(1_100_000) }], { partitionId: "0" });
  await assert.rejects(tooMuch, (error) => {
    assert.equal(error.code, "MessageTooLargeError");
    assert.match(
      error.message,
      /exceeds the limit \(1048576 bytes\) currently allowed on the link/,
    );
    return true;
  });
  const batch = await client.createBatch({ partitionId: "0" });
  assert.equal(batch.tryAdd({ body: Buffer.alloc(1_100_000) }), false);
  await client.sendBatch([{ body: "the link is still good" }], { partitionId: "0" });
  assert.deepEqual(bodies(await readSome("0", 1)), ["the link is still good"]);
}

export async function manyAtOnce() {
  const client = producer();
  await client.sendBatch([{ body: -1 }], { partitionId: "0" }); // opens the link
  await Promise.all(numbers(250).map((body) => client.sendBatch([{ body }], { partitionId: "0" })));
  const events = await readSome("0", 251);
  assert.deepEqual(bodies(events), [-1, ...numbers(250)]);
}

export async function buffered() {
  const sent = [];
  const failed = [];
  const client = bufferedProducer({
    maxWaitTimeInMs: 50,
    onSendEventsSuccessHandler: async ({ events, partitionId }) => {
      for (const event of events) sent.push([event.body, partitionId]);
    },
    onSendEventsErrorHandler: async ({ error }) => failed.push(error),
  });
  for (const number of numbers(200)) {
    const partitionKey = `key-${number % 7}`;
    await client.enqueueEvent({ body: { number, partitionKey } }, { partitionKey });
  }
  await client.enqueueEvents(
    numbers(20).map((body) => ({ body })),
    { partitionId: "3" },
  );
  await client.flush();
  assert.deepEqual(failed, []);
  assert.equal(sent.length, 220);

  const reading = read(consumer(), null);
  const events = await reading.take(220);
  await reading.close();
  const keyed = events.filter((event) => event.body.partitionKey !== undefined);
  assert.equal(keyed.length, 200);
  for (const { body, partition } of keyed)
    assert.equal(
      partition,
      String(mapPartitionKeyToId(body.partitionKey, given.partitions.length)),
    );
  for (const key of new Set(keyed.map((event) => event.body.partitionKey))) {
    const order = keyed.filter((e) => e.body.partitionKey === key).map((e) => e.body.number);
    assert.deepEqual(
      order,
      [...order].sort((a, b) => a - b),
    );
  }
  const direct = events.filter((event) => typeof event.body === "number");
  assert.deepEqual(bodies(direct), numbers(20));
  assert.ok(direct.every((event) => event.partition === "3"));
}
