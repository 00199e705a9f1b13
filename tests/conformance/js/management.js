// Properties of hubs and partitions.

import assert from "node:assert/strict";
import { bodies, consumer, given, once, producer, readSome } from "./scenario.js";

export async function hubProperties() {
  for (const client of [producer(), consumer()]) {
    const properties = await client.getEventHubProperties();
    assert.equal(properties.name, given.hub);
    assert.deepEqual(properties.partitionIds, given.partitions);
    assert.ok(Math.abs(properties.createdOn - Date.now()) < 60_000);
    assert.equal(properties.isGeoDrEnabled, false);
    assert.deepEqual(await client.getPartitionIds(), given.partitions);
  }
}

export async function partitionProperties() {
  const client = producer();
  const empty = await client.getPartitionProperties("2");
  assert.equal(empty.eventHubName, given.hub);
  assert.equal(empty.partitionId, "2");
  assert.equal(empty.isEmpty, true);
  assert.equal(empty.lastEnqueuedSequenceNumber, -1);
  assert.equal(empty.lastEnqueuedOffset, "-1");

  await client.sendBatch([{ body: "a" }, { body: "b" }], { partitionId: "2" });
  const [, last] = await readSome("2", 2);
  const properties = await client.getPartitionProperties("2");
  assert.deepEqual(
    [properties.isEmpty, properties.beginningSequenceNumber, properties.lastEnqueuedSequenceNumber],
    [false, 0, 1],
  );
  assert.equal(properties.lastEnqueuedOffset, last.offset);
  assert.deepEqual(properties.lastEnqueuedOnUtc, last.enqueuedTimeUtc);
}

export async function unknownPartition() {
  const client = producer({ retryOptions: once });
  await assert.rejects(client.getPartitionProperties("4"), { code: "ArgumentOutOfRangeError" });
  await assert.rejects(client.sendBatch([{ body: 1 }], { partitionId: "4" }), {
    code: "ArgumentOutOfRangeError",
  });
}

export async function manyQuestionsAtOnce() {
  const client = producer();
  const questions = Array.from({ length: 200 }, (_, i) =>
    client.getPartitionProperties(`${i % 4}`),
  );
  const answers = await Promise.all(questions);
  assert.deepEqual(
    answers.map((answer) => answer.partitionId),
    answers.map((_, i) => `${i % 4}`),
  );
}

// One client, one connection: questions, sends and reads side by side.
export async function allOnOneConnection() {
  const client = producer();
  const [properties] = await Promise.all([
    client.getEventHubProperties(),
    client.sendBatch([{ body: 0 }], { partitionId: "0" }),
    client.sendBatch([{ body: 1 }], { partitionId: "1" }),
    client.sendBatch([{ body: 2 }]),
    client.getPartitionProperties("0"),
  ]);
  assert.equal(properties.name, given.hub);
  assert.equal(bodies(await readSome("0", 1))[0], 0);
}
