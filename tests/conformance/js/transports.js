// Other transports: TLS and WebSocket, and a token instead of a key. Each sends, reads and asks.

import assert from "node:assert/strict";
import { EventHubConsumerClient, EventHubProducerClient } from "@azure/event-hubs";
import WebSocket from "ws";
import { bodies, given, keep, quick, read } from "./scenario.js";

async function works(sending, listening) {
  const large = Buffer.alloc(300_000, "x"); // several records of TLS, several frames of each kind
  await sending.sendBatch([{ body: "small" }, { body: large }], { partitionId: "0" });
  const [small, same] = bodies(await read(listening, "0").take(2));
  assert.equal(small, "small");
  assert.ok(large.equals(same));
  assert.equal((await sending.getEventHubProperties()).name, given.hub);
}

function clients(connection, options = {}) {
  const all = { retryOptions: quick, ...options };
  return [
    keep(new EventHubProducerClient(connection, all)),
    keep(new EventHubConsumerClient(given.group, connection, all)),
  ];
}

export async function tls() {
  await works(...clients(given.secure));
}

export async function webSocket() {
  const connection = given.secure.replace(/(sb:\/\/[^:]+:)\d+/, `$1${given.webSocketPort}`);
  await works(...clients(connection, { webSocketOptions: { webSocket: WebSocket } }));
}

export async function tokenInsteadOfKey() {
  const [, address] = /sb:\/\/([^;]+)/.exec(given.secure);
  const credential = {
    getToken: async () => ({ token: given.token, expiresOnTimestamp: Date.now() + 3_600_000 }),
  };
  const options = { retryOptions: quick };
  await works(
    keep(new EventHubProducerClient(address, given.hub, credential, options)),
    keep(new EventHubConsumerClient(given.group, address, given.hub, credential, options)),
  );
}

export async function untrustedCertificate() {
  const [sending] = clients(given.secure, { retryOptions: { maxRetries: 0, timeoutInMs: 10_000 } });
  await assert.rejects(sending.getEventHubProperties(), /certificate/);
}
