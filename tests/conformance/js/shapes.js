// Events of every kind are read as they were sent, types included.

import assert from "node:assert/strict";
import rhea from "rhea";
import { bodies, producer, readSome } from "./scenario.js";

const { types } = rhea;
const partitionId = "0";
const send = (...events) => producer().sendBatch(events, { partitionId });

export async function bodiesOfEveryKind() {
  const sent = [
    "text",
    "grüße 🚰",
    "",
    0,
    -7,
    1.5,
    true,
    false,
    null,
    [1, "two", null],
    { a: { b: [] } },
  ];
  await send(...sent.map((body) => ({ body })));
  assert.deepEqual(bodies(await readSome(partitionId, sent.length)), sent);
}

export async function buffers() {
  const sent = [
    Buffer.from([0, 255, 1]),
    Buffer.alloc(0),
    Buffer.alloc(255, 1),
    Buffer.alloc(256, 2),
  ];
  await send(...sent.map((body) => ({ body })));
  const events = await readSome(partitionId, sent.length, { skipParsingBodyAsJson: true });
  assert.deepEqual(
    events.map((event) => Buffer.from(event.body)),
    sent,
  );
}

export async function amqpBodies() {
  const sent = [
    { bodyType: "value", body: "a value" },
    { bodyType: "value", body: { list: [1, 2], text: "x" } },
    { bodyType: "value", body: 12.25 },
    { bodyType: "sequence", body: [["one", 2, true]] },
    { bodyType: "data", body: { json: true } },
  ];
  await send(...sent);
  const events = await readSome(partitionId, sent.length);
  const messages = events.map((event) => event.getRawAmqpMessage());
  assert.deepEqual(
    messages.map((raw) => raw.bodyType),
    sent.map((event) => event.bodyType),
  );
  assert.deepEqual(
    bodies(events).filter((_, i) => i !== 3),
    bodies(sent).filter((_, i) => i !== 3),
  );
  // For a sequence body the client returns the list of its sections.
  assert.deepEqual([events[3].body].flat(2), ["one", 2, true]);
}

export async function properties() {
  const time = new Date("2024-05-01T12:00:00.123Z");
  const sent = {
    text: "grüße",
    empty: "",
    zero: 0,
    small: -1,
    large: 2 ** 40,
    negative: -(2 ** 40),
    half: 0.5,
    yes: true,
    no: false,
    nothing: null,
    time,
    raw: Buffer.from([0, 1, 2]),
    ["x".repeat(300)]: "y".repeat(300),
  };
  await send({ body: "b", properties: sent });
  const [event] = await readSome(partitionId, 1);
  assert.deepEqual(event.getRawAmqpMessage().applicationProperties, sent);
  // In `properties` the client converts dates to numbers, and a Buffer to an object with the keys
  // "0", "1", "2".
  assert.deepEqual(event.properties, { ...sent, time: time.getTime(), raw: { ...sent.raw } });
}

// Integer widths that JavaScript lacks, as another language may send them.
export async function typedProperties() {
  const sent = {
    byte: types.wrap_byte(-128),
    ubyte: types.wrap_ubyte(255),
    short: types.wrap_short(-32768),
    ushort: types.wrap_ushort(65535),
    int: types.wrap_int(-(2 ** 31)),
    uint: types.wrap_uint(2 ** 32 - 1),
    long: types.wrap_long(-5),
    ulong: types.wrap_ulong(5),
    float: types.wrap_float(0.25),
    double: types.wrap_double(1e300),
    char: types.wrap_char("é".codePointAt(0)),
    uuid: types.wrap_uuid(Buffer.alloc(16, 7)),
    symbol: types.wrap_symbol("sym"),
    timestamp: types.wrap_timestamp(-1000),
    binary: types.wrap_binary(Buffer.alloc(300, 9)),
  };
  await send({ body: "b", properties: sent });
  const [event] = await readSome(partitionId, 1);
  const read = event.getRawAmqpMessage().applicationProperties;
  assert.equal(read.byte, -128);
  assert.equal(read.ubyte, 255);
  assert.equal(read.short, -32768);
  assert.equal(read.ushort, 65535);
  assert.equal(read.int, -(2 ** 31));
  assert.equal(read.uint, 2 ** 32 - 1);
  assert.equal(read.long, -5);
  assert.equal(read.ulong, 5);
  assert.equal(read.float, 0.25);
  assert.equal(read.double, 1e300);
  assert.deepEqual(Buffer.from(read.uuid), Buffer.alloc(16, 7));
  assert.equal(read.symbol, "sym");
  assert.deepEqual(read.timestamp, new Date(-1000));
  assert.deepEqual(Buffer.from(read.binary), Buffer.alloc(300, 9));
  assert.equal(Object.keys(read).length, 15);
}

export async function identity() {
  const ids = ["text", 42, Buffer.alloc(16, 5)]; // a Buffer is sent as a UUID, cut or filled to 16
  await send(
    ...ids.map((id) => ({
      body: "b",
      contentType: "text/plain",
      messageId: id,
      correlationId: id,
    })),
  );
  const events = await readSome(partitionId, ids.length);
  assert.deepEqual(
    events.map((event) => event.messageId),
    ids,
  );
  assert.deepEqual(
    events.map((event) => event.correlationId),
    ids,
  );
  assert.deepEqual(
    events.map((event) => event.contentType),
    ids.map(() => "text/plain"),
  );
}

export async function everySection() {
  const sent = {
    bodyType: "data",
    body: "b",
    header: {
      durable: true,
      priority: 3,
      firstAcquirer: true,
      deliveryCount: 2,
      timeToLive: 60_000,
    },
    properties: {
      messageId: "m", // and no userId: the client leaves it out
      to: "t",
      subject: "s",
      replyTo: "r",
      correlationId: "c",
      contentType: "text/plain",
      contentEncoding: "gzip",
      absoluteExpiryTime: 1_700_000_060_000,
      creationTime: 1_700_000_000_000,
      groupId: "g",
      groupSequence: 7,
      replyToGroupId: "rg",
    },
    applicationProperties: { app: 1 },
    messageAnnotations: { "x-opt-mine": "kept" },
    deliveryAnnotations: { "x-opt-hop": "kept" },
    footer: { foot: "note" },
  };
  await send(sent);
  const [event] = await readSome(partitionId, 1);
  const raw = event.getRawAmqpMessage();
  assert.deepEqual(raw.header, sent.header);
  assert.deepEqual(raw.properties, sent.properties);
  assert.deepEqual(raw.applicationProperties, sent.applicationProperties);
  assert.equal(raw.messageAnnotations["x-opt-mine"], "kept");
  assert.deepEqual(raw.footer, sent.footer);
  // The specification keeps delivery annotations for the next hop; the service returns them.
  assert.deepEqual(raw.deliveryAnnotations, sent.deliveryAnnotations);
  assert.equal(event.systemProperties.subject, "s");
}

// An event that is read and sent again still carries the annotations of the hub.
export async function sentOn() {
  const client = producer();
  await client.sendBatch([{ body: 1 }, { body: 2 }], { partitionKey: "k" });
  const ids = await client.getPartitionIds();
  const full = [];
  for (const id of ids) {
    const { lastEnqueuedSequenceNumber } = await client.getPartitionProperties(id);
    if (lastEnqueuedSequenceNumber === 1) full.push(id);
  }
  assert.equal(full.length, 1);
  const [, second] = await readSome(full[0], 2);
  assert.equal(second.partitionKey, "k");
  const other = ids.find((id) => id !== full[0]);
  const { messageAnnotations } = second.getRawAmqpMessage();
  assert.equal(messageAnnotations["x-opt-sequence-number"], 1);
  const carrier = { bodyType: "data", body: second.body, messageAnnotations };
  await client.sendBatch([carrier], { partitionId: other });
  const [again] = await readSome(other, 1);
  assert.equal(again.body, 2);
  assert.equal(again.sequenceNumber, 0);
  assert.equal(again.offset, "0");
}
