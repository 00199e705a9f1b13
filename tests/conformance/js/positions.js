// Where reading starts.

import assert from "node:assert/strict";
import { earliestEventPosition, latestEventPosition } from "@azure/event-hubs";
import { bodies, consumer, given, once, producer, read, readers, readSome } from "./scenario.js";

const partitionId = "0";

// Five events in five batches, with the numbers, offsets and times of the hub.
async function five() {
  const client = producer();
  for (const body of [0, 1, 2, 3, 4]) await client.sendBatch([{ body }], { partitionId });
  return readSome(partitionId, 5);
}

// The bodies from a position on, up to the last event.
async function from(startPosition) {
  const reading = read(consumer(), partitionId, { startPosition });
  await reading.when(() => reading.events.at(-1)?.body === 4 || reading.errors.length > 0);
  await reading.close();
  assert.deepEqual(reading.errors, []);
  return bodies(reading.events);
}

export async function earliest() {
  await five();
  assert.deepEqual(await from(earliestEventPosition), [0, 1, 2, 3, 4]);
}

export async function latest() {
  await five();
  const reading = read(consumer(), partitionId, { startPosition: latestEventPosition });
  await readers(1);
  await producer().sendBatch([{ body: "new" }], { partitionId });
  assert.deepEqual(bodies(await reading.take(1)), ["new"]);
}

export async function latestIsTheDefault() {
  await five();
  const reading = read(consumer(), partitionId, { startPosition: undefined });
  await readers(1);
  await producer().sendBatch([{ body: "new" }], { partitionId });
  assert.deepEqual(bodies(await reading.take(1)), ["new"]);
}

export async function offset() {
  const { offset } = (await five())[2];
  assert.deepEqual(await from({ offset }), [3, 4]);
  assert.deepEqual(await from({ offset, isInclusive: true }), [2, 3, 4]);
}

export async function sequenceNumber() {
  await five();
  assert.deepEqual(await from({ sequenceNumber: 2 }), [3, 4]);
  assert.deepEqual(await from({ sequenceNumber: 2, isInclusive: true }), [2, 3, 4]);
  assert.deepEqual(await from({ sequenceNumber: 0, isInclusive: true }), [0, 1, 2, 3, 4]);
}

export async function enqueuedTime() {
  const events = await five();
  const time = events[2].enqueuedTimeUtc;
  const later = events.filter((event) => event.enqueuedTimeUtc > time).map((event) => event.body);
  const before = new Date(events[0].enqueuedTimeUtc - 1);
  assert.deepEqual(await from({ enqueuedOn: before }), [0, 1, 2, 3, 4]);
  assert.deepEqual(await from({ enqueuedOn: before.getTime() }), [0, 1, 2, 3, 4]);
  if (later.length > 0) assert.deepEqual(await from({ enqueuedOn: time }), later);
  const reading = read(consumer(), partitionId, { startPosition: { enqueuedOn: new Date() } });
  await readers(1);
  await producer().sendBatch([{ body: "new" }], { partitionId });
  assert.equal((await reading.take(1)).at(-1).body, "new");
}

export async function beyondTheEnd() {
  await five();
  const client = consumer({ retryOptions: once });
  const reading = read(client, partitionId, { startPosition: { offset: "123456789" } });
  const error = await reading.failure();
  assert.equal(error.code, "ArgumentError");
  assert.match(error.message, /The supplied offset '123456789' is invalid/);
  await reading.close();
}

export async function emptyPartition() {
  const reading = read(consumer(), "3");
  await readers(1, { partition: "3" });
  await producer().sendBatch([{ body: "first" }], { partitionId: "3" });
  assert.deepEqual(bodies(await reading.take(1)), ["first"]);
}

export async function eachPartitionItsOwn() {
  const client = producer();
  for (const id of given.partitions) {
    await client.sendBatch([{ body: `${id}a` }, { body: `${id}b` }], { partitionId: id });
  }
  const startPosition = {
    0: earliestEventPosition,
    1: { sequenceNumber: 0 },
    2: { sequenceNumber: 1, isInclusive: true },
    3: earliestEventPosition,
  };
  const reading = read(consumer(), null, { startPosition });
  const events = await reading.take(6);
  assert.deepEqual(bodies(events).sort(), ["0a", "0b", "1b", "2b", "3a", "3b"]);
}

// A reader that is behind gets old and new events without a gap.
export async function catchesUp() {
  const client = producer();
  const sendFrom = (start) =>
    client.sendBatch(
      Array.from({ length: 100 }, (_, i) => ({ body: start + i })),
      { partitionId },
    );
  await sendFrom(0);
  const reading = read(consumer(), partitionId, { maxBatchSize: 7, prefetchCount: 11 });
  for (let start = 100; start < 400; start += 100) await sendFrom(start);
  const events = await reading.take(400);
  assert.deepEqual(
    bodies(events),
    Array.from({ length: 400 }, (_, i) => i),
  );
}

export async function tracksTheLastEnqueuedEvent() {
  const client = producer();
  await client.sendBatch([{ body: 0 }, { body: 1 }, { body: 2 }], { partitionId });
  const reading = read(consumer(), partitionId, { trackLastEnqueuedEventProperties: true });
  const events = await reading.take(3);
  assert.equal(reading.last.sequenceNumber, 2);
  assert.equal(reading.last.offset, events[2].offset);
  assert.deepEqual(reading.last.enqueuedOn, events[2].enqueuedTimeUtc);
  assert.ok(Math.abs(reading.last.retrievedOn - Date.now()) < 60_000);
  // Large enough that its metric and its body do not fit one frame of the hub's own limit.
  await client.sendBatch([{ body: Buffer.alloc(200_000, "x") }], { partitionId });
  await reading.take(4);
  assert.equal(reading.last.sequenceNumber, 3);
}

export async function doesNotTrackUnasked() {
  await producer().sendBatch([{ body: 0 }], { partitionId });
  const reading = read(consumer(), partitionId);
  const [event] = await reading.take(1);
  assert.equal(reading.last, undefined);
  assert.equal(event.getRawAmqpMessage().deliveryAnnotations, undefined);
}

export async function twoGroups() {
  await five();
  const readings = [given.group, "second"].map((group) => read(consumer({ group }), partitionId));
  for (const reading of readings) assert.deepEqual(bodies(await reading.take(5)), [0, 1, 2, 3, 4]);
}
