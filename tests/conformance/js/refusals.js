// Refusals of the hub, and the errors that the client raises for them.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { consumer, given, once, producer, read, readSome } from "./scenario.js";

const strict = { retryOptions: once };
const send = (connection) =>
  producer(strict, connection).sendBatch([{ body: "b" }], { partitionId: "0" });
const readError = (settings) => read(consumer({ ...strict, ...settings }), "0").failure();

const changed = (part, value) =>
  given.connection.replace(new RegExp(`${part}=[^;]*`), `${part}=${value}`);

export async function wrongKey() {
  const connection = changed("SharedAccessKey", Buffer.alloc(32).toString("base64"));
  await assert.rejects(send(connection), { code: "UnauthorizedError" });
  assert.equal((await readError({ connection })).code, "UnauthorizedError");
  const client = producer(strict, connection);
  await assert.rejects(client.getEventHubProperties(), { code: "UnauthorizedError" });
}

export async function unknownRule() {
  const connection = changed("SharedAccessKeyName", "nobody");
  await assert.rejects(send(connection), (error) => {
    assert.equal(error.code, "UnauthorizedError");
    assert.ok(!error.message.includes("SharedAccessSignature"), "a token must not be quoted");
    return true;
  });
}

export async function sendWithoutTheClaim() {
  await assert.rejects(send(given.listenOnly), (error) => {
    assert.equal(error.code, "UnauthorizedError");
    assert.match(error.message, /'Send' claim\(s\) are required/);
    return true;
  });
}

export async function listenWithoutTheClaim() {
  const error = await readError({ connection: given.sendOnly });
  assert.equal(error.code, "UnauthorizedError");
  assert.match(error.message, /'Listen' claim\(s\) are required/);
}

export async function eachClaimSuffices() {
  await send(given.sendOnly);
  const client = consumer({ ...strict, connection: given.listenOnly });
  const reading = read(client, "0");
  assert.equal((await reading.take(1)).length, 1);
  assert.equal((await client.getEventHubProperties()).name, given.hub);
}

export async function unknownHub() {
  const connection = changed("EntityPath", "nowhere");
  const notFound = { code: "MessagingEntityNotFoundError" };
  await assert.rejects(send(connection), (error) => {
    assert.equal(error.code, "MessagingEntityNotFoundError");
    assert.match(error.message, /nowhere' could not be found/);
    return true;
  });
  assert.equal((await readError({ connection })).code, notFound.code);
  await assert.rejects(producer(strict, connection).getEventHubProperties(), notFound);
}

export async function unknownGroup() {
  const error = await readError({ group: "strangers" });
  assert.equal(error.code, "MessagingEntityNotFoundError");
  assert.match(error.message, /strangers/);
}

export async function longPartitionKey() {
  const client = producer(strict);
  const sending = client.sendBatch([{ body: "b" }], { partitionKey: "k".repeat(129) });
  await assert.rejects(sending, { code: "ArgumentError" });
  await client.sendBatch([{ body: "b" }], { partitionKey: "k".repeat(128) });
}

const field = (name) => new RegExp(`${name}=([^;]*)`).exec(given.connection)[1];

// A ready signature instead of a key, as devices have it.
function signed(expiresInS, path = given.hub) {
  const resource = encodeURIComponent(`${field("Endpoint")}/${path}`);
  const expiry = Math.floor(Date.now() / 1000) + expiresInS;
  const signature = createHmac("sha256", field("SharedAccessKey"))
    .update(`${resource}\n${expiry}`)
    .digest("base64");
  const token =
    `SharedAccessSignature sr=${resource}&sig=${encodeURIComponent(signature)}` +
    `&se=${expiry}&skn=${field("SharedAccessKeyName")}`;
  return given.connection
    .replace(/SharedAccessKeyName=[^;]*;/, "")
    .replace(/SharedAccessKey=[^;]*/, `SharedAccessSignature=${token}`);
}

export async function readySignature() {
  const connection = signed(600);
  const client = producer(strict, connection);
  await client.sendBatch([{ body: "signed" }], { partitionId: "0" });
  assert.equal((await client.getEventHubProperties()).name, given.hub);
  assert.equal((await readSome("0", 1))[0].body, "signed");
}

export async function expiredSignature() {
  await assert.rejects(send(signed(-10)), (error) => {
    assert.equal(error.code, "UnauthorizedError");
    assert.match(error.message, /ExpiredToken/);
    return true;
  });
}

export async function signatureForAnotherHub() {
  await assert.rejects(send(signed(600, "elsewhere")), { code: "UnauthorizedError" });
}
