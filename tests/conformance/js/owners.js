// Owner levels: which readers may share a partition.

import assert from "node:assert/strict";
import { CloseReason } from "@azure/event-hubs";
import { bodies, consumer, once, producer, read, readers } from "./scenario.js";

const partition = "0";
// After losing its partition a subscription retries at this interval: longer than any test.
const never = { loadBalancingOptions: { updateIntervalInMs: 3_600_000 }, retryOptions: once };

const reader = (ownerLevel) => read(consumer(never), partition, { ownerLevel });

async function attached(ownerLevel, count = 1) {
  const reading = reader(ownerLevel);
  await readers(count);
  return reading;
}

async function works(reading) {
  const before = reading.events.length;
  await producer().sendBatch([{ body: "still there" }], { partitionId: partition });
  const events = await reading.take(before + 1);
  assert.equal(bodies(events).at(-1), "still there");
}

async function evicted(reading) {
  const error = await reading.failure();
  assert.equal(error.code, "ReceiverDisconnectedError");
  assert.match(
    error.message,
    /New receiver '.+' with higher epoch of '\d+' is created hence current/,
  );
  await reading.when(() => reading.closed.length > 0);
  assert.deepEqual(reading.closed, [[partition, CloseReason.OwnershipLost]]);
}

async function refused(reading, code, text) {
  const error = await reading.failure();
  assert.equal(error.code, code);
  assert.match(error.message, text);
}

export async function higherEvicts() {
  const low = await attached(1);
  const high = reader(2);
  await evicted(low);
  await works(high);
}

export async function equalEvicts() {
  const first = await attached(1);
  const second = reader(1);
  await evicted(first);
  await works(second);
}

export async function lowerIsRefused() {
  const high = await attached(2);
  await refused(
    reader(1),
    "ReceiverDisconnectedError",
    /Receiver '.+' with a higher epoch '2' already exists. Receiver '.+' with epoch 1 cannot be created/,
  );
  await works(high);
}

export async function epochlessIsRefusedBesideAnOwner() {
  const owner = await attached(1);
  await refused(
    reader(undefined),
    "ReceiverDisconnectedError",
    /At least one receiver for the endpoint is created with epoch of '1', and so non-epoch/,
  );
  await works(owner);
}

export async function ownerEvictsTheEpochless() {
  const crowd = [await attached(undefined, 1), await attached(undefined, 2)];
  const owner = reader(1);
  for (const reading of crowd) await evicted(reading);
  await works(owner);
}

export async function fiveReadersAndNoMore() {
  const crowd = [];
  for (const count of [1, 2, 3, 4, 5]) crowd.push(await attached(undefined, count));
  await refused(
    reader(undefined),
    "QuotaExceededError",
    /Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5/,
  );
  await crowd[0].close();
  await readers(4);
  const late = await attached(undefined, 5);
  await works(late);
}

export async function forgottenOnceClosed() {
  const high = await attached(9);
  await high.close();
  await readers(0);
  await works(await attached(undefined));
}

export async function groupsDoNotMeet() {
  const owner = await attached(5);
  const other = read(consumer({ ...never, group: "second" }), partition);
  await works(other);
  await works(owner);
}

// The client treats owner level 0 as none, unless it has a checkpoint store.
export async function levelZeroIsNoLevel() {
  await attached(0);
  await works(await attached(undefined, 2));
}
