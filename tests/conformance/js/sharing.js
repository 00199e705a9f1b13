// Consumers with a checkpoint store share the partitions and resume after the checkpoints.

import assert from "node:assert/strict";
import { CloseReason } from "@azure/event-hubs";
import { bodies, consumer, given, producer, read, readers } from "./scenario.js";
import { MemoryStore } from "./store.js";

const balancing = (strategy) => ({
  loadBalancingOptions: {
    strategy,
    updateIntervalInMs: 100,
    partitionOwnershipExpirationIntervalInMs: 5000,
  },
});

const member = (store, identifier, strategy = "balanced") =>
  consumer({ store, identifier, ...balancing(strategy) });

const held = (reading) => reading.opened.length - reading.closed.length;

async function sendToAll(text) {
  const client = producer();
  for (const partitionId of given.partitions)
    await client.sendBatch([{ body: `${text}${partitionId}` }], { partitionId });
}

async function share(strategy) {
  const store = new MemoryStore();
  const letters = { a: "a", b: "b" };
  const a = read(member(store, "a", strategy), null);
  await a.when(() => held(a) === 4);
  assert.equal(store.picture(letters), "aaaa");
  const b = read(member(store, "b", strategy), null);
  await b.when(() => held(b) === 2);
  await a.when(() => a.closed.length === 2);
  assert.equal([...store.picture(letters)].sort().join(""), "aabb");
  assert.deepEqual(
    a.closed.map(([, reason]) => reason),
    [CloseReason.OwnershipLost, CloseReason.OwnershipLost],
  );
  for (const partition of given.partitions) await readers(1, { partition });
  return { store, letters, a, b };
}

async function everyEventOnce(a, b) {
  await sendToAll("n");
  const both = () => [...a.events, ...b.events];
  const waits = [a, b].map((reading) => reading.when(() => both().length >= 4));
  await Promise.race(waits);
  assert.deepEqual(bodies(both()).sort(), ["n0", "n1", "n2", "n3"]);
  assert.equal(new Set(a.events.map((event) => event.partition)).size, 2);
  assert.equal(new Set(b.events.map((event) => event.partition)).size, 2);
}

export async function twoShareEvenly() {
  const { a, b } = await share("balanced");
  await everyEventOnce(a, b);
}

export async function twoShareGreedily() {
  const { a, b } = await share("greedy");
  await everyEventOnce(a, b);
}

export async function theOtherTakesOver() {
  const { store, letters, a, b } = await share("balanced");
  await b.close();
  await a.when(() => held(a) === 4);
  assert.equal(store.picture(letters), "aaaa");
  for (const partition of given.partitions) await readers(1, { partition });
  await sendToAll("late");
  await a.when(() => a.events.length === 4);
  assert.deepEqual(new Set(a.events.map((event) => event.partition)), new Set(given.partitions));
}

export async function goesOnAtTheCheckpoint() {
  const store = new MemoryStore();
  const client = producer();
  for (const body of [0, 1, 2, 3]) await client.sendBatch([{ body }], { partitionId: "0" });

  const first = read(member(store, "first"), null, { maxBatchSize: 1 });
  first.onEvents = async (events, context) => {
    if (events[0]?.body === 1) await context.updateCheckpoint(events[0]);
  };
  await first.take(4);
  await first.close();

  const second = read(member(store, "second"), null);
  assert.deepEqual(bodies(await second.take(2)), [2, 3]);
}

export async function checkpointsOfNothing() {
  const store = new MemoryStore();
  const reading = read(member(store, "a"), null);
  await reading.when(() => held(reading) === 4);
  const rows = await store.listCheckpoints("127.0.0.1", given.hub, given.group);
  assert.deepEqual(rows, []);
}
