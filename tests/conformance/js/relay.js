// Events between languages; test_javascript.py is the other side.

import assert from "node:assert/strict";
import { mapPartitionKeyToId } from "./node_modules/@azure/event-hubs/dist/esm/impl/partitionKeyToIdMapper.js";
import { consumer, given, producer, read } from "./scenario.js";

// Sends with many keys and returns the partition of each.
export async function sendByKey() {
  const client = producer();
  const plain = Array.from({ length: 60 }, (_, i) => `key-${i}`);
  const keys = [...plain, "ключ", "鍵", "🔑", "a", " ", "x".repeat(128)];
  await Promise.all(
    keys.map(async (partitionKey) => {
      const batch = await client.createBatch({ partitionKey });
      batch.tryAdd({ body: partitionKey });
      await client.sendBatch(batch);
    }),
  );
  const homes = {};
  for (const { body, partitionKey, partition } of await read(consumer(), null).take(keys.length)) {
    assert.equal(partitionKey, body);
    assert.equal(partition, String(mapPartitionKeyToId(body, given.partitions.length)), body);
    homes[body] = partition;
  }
  return homes;
}

// What the Python side expects, event by event.
export async function sendForPython() {
  const client = producer();
  const properties = {
    text: "grüße",
    whole: 7,
    negative: -7,
    large: 2 ** 40,
    half: 0.5,
    yes: true,
    no: false,
    nothing: null,
    time: new Date("2024-05-01T12:00:00.123Z"),
    raw: Buffer.from([0, 1, 255]),
  };
  const ids = { contentType: "text/plain", messageId: "m-1", correlationId: "c-1" };
  const events = [
    { body: "text" },
    { body: Buffer.from([0, 255]) },
    { body: { json: [1, null, "ü"] } },
    { body: "p", properties, ...ids },
    { bodyType: "value", body: "a value" },
    { bodyType: "value", body: { a: [1, 2] } },
  ];
  for (const event of events) await client.sendBatch([event], { partitionId: "0" });
}

export async function sendWithKey() {
  await producer().sendBatch([{ body: "keyed" }], { partitionKey: "ключ" });
}

// Reads what the Python side sent, and describes it.
export async function readFromPython() {
  const reading = read(consumer(), "0", { skipParsingBodyAsJson: true });
  const events = await reading.take(given.count);
  return events.map((event) => ({
    body: described(event.body),
    bodyType: event.getRawAmqpMessage().bodyType,
    properties: described(event.getRawAmqpMessage().applicationProperties ?? {}),
    contentType: event.contentType,
    messageId: event.messageId,
    correlationId: event.correlationId,
    partitionKey: event.partitionKey,
    sequenceNumber: event.sequenceNumber,
    subject: event.getRawAmqpMessage().properties?.subject,
    annotation: event.getRawAmqpMessage().messageAnnotations["x-opt-mine"],
  }));
}

// As JSON, with explicit names for the types that JSON lacks.
function described(value) {
  if (Buffer.isBuffer(value)) return { hex: value.toString("hex") };
  if (value instanceof Date) return { ms: value.getTime() };
  if (Array.isArray(value)) return value.map(described);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, described(part)]));
}
