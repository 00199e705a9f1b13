// Shared by all scenarios: the input, the pytest process at the other end of stdin and stdout, and a
// reader that collects the events of a subscription.
//
// No scenario sleeps. It waits for a condition, and pytest kills a scenario that waits too long.

import { createInterface } from "node:readline";
import {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} from "@azure/event-hubs";
import WebSocket from "ws";

// connection, namespace, sendOnly, listenOnly: connection strings; hub, partitions, group: names;
// webSocket: whether the connection strings lead to such a port.
export const given = JSON.parse(process.env.PUMPHOUSE_SCENARIO);

// The defaults of the client are 30 s and more: too long for a test on one machine.
export const quick = {
  maxRetries: 3,
  retryDelayInMs: 50,
  maxRetryDelayInMs: 200,
  // Over WebSocket the client does not notice a dropped connection: it waits for this time-out.
  timeoutInMs: given.webSocket ? 3_000 : 10_000,
};
export const once = { maxRetries: 0, timeoutInMs: 10_000 };

// -- the wrapper ----------------------------------------------------------------------------------

let answers;

// Asks pytest to do something to the hub, and waits until it is done.
export async function ask(what, details = {}) {
  // A client that reconnects while its old connection closes may leave the new one half open, which
  // keeps this process alive.
  lingers ||= what === "drop" || what === "close";
  answers ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  say({ ask: what, ...details });
  return JSON.parse((await answers.next()).value).answer;
}

export function say(words) {
  process.stdout.write(`${JSON.stringify(words)}\n`);
}

export const readers = (count, { partition = "0", group = given.group } = {}) =>
  ask("readers", { partition, group, count });

// -- clients, closed when the scenario ends -------------------------------------------------------

const opened = [];
let lingers = false;

export function keep(closable) {
  opened.push(closable);
  return closable;
}

export async function closeAll() {
  for (const closable of opened.reverse()) await closable.close();
  process.stdin.destroy(); // or else it keeps the process alive
  if (lingers) process.exit();
}

// The transport of every client. (TLS is in the connection string.)
const way = given.webSocket ? { webSocketOptions: { webSocket: WebSocket } } : {};

export const producer = (options = {}, connection = given.connection) =>
  keep(new EventHubProducerClient(connection, { retryOptions: quick, ...way, ...options }));

export function bufferedProducer(options = {}) {
  lingers = true; // a timer of this client outlives its close by up to ten seconds
  return keep(
    new EventHubBufferedProducerClient(given.connection, {
      retryOptions: quick,
      ...way,
      ...options,
    }),
  );
}

export function consumer({
  group = given.group,
  store,
  connection = given.connection,
  ...rest
} = {}) {
  const options = { retryOptions: quick, ...way, ...rest };
  const more = store ? [store, options] : [options];
  return keep(new EventHubConsumerClient(group, connection, ...more));
}

// -- reading --------------------------------------------------------------------------------------

// The events, errors and callbacks of one subscription.
export class Reading {
  events = [];
  errors = [];
  closed = []; // partition and reason, in the order of closing
  opened = [];
  #waiting = new Set();

  // Resolves when the test holds; it is evaluated after every callback.
  when(test) {
    return new Promise((resolve) => {
      this.#waiting.add([test, resolve]);
      this.#look();
    });
  }

  #look() {
    for (const waiter of this.#waiting) {
      if (waiter[0]()) {
        this.#waiting.delete(waiter);
        waiter[1]();
      }
    }
  }

  // All events, as soon as there are `count`; an error before that is thrown.
  async take(count) {
    await this.when(() => this.events.length >= count || this.errors.length > 0);
    if (this.errors.length > 0) throw this.errors[0];
    return this.events;
  }

  // The first error.
  async failure() {
    await this.when(() => this.errors.length > 0);
    return this.errors[0];
  }

  handlers = {
    processInitialize: async (context) => {
      this.opened.push(context.partitionId);
      this.#look();
    },
    processEvents: async (events, context) => {
      for (const event of events) this.events.push({ ...event, partition: context.partitionId });
      this.last = context.lastEnqueuedEventProperties;
      await this.onEvents?.(events, context);
      this.#look();
    },
    processError: async (error) => {
      this.errors.push(error);
      this.#look();
    },
    processClose: async (reason, context) => {
      this.closed.push([context.partitionId, reason]);
      this.#look();
    },
  };

  close() {
    return this.subscription.close();
  }
}

// Subscribes to one partition, or to all of them if it is null.
export function read(client, partition, options = {}) {
  const reading = new Reading();
  const all = {
    startPosition: earliestEventPosition,
    maxBatchSize: 100,
    maxWaitTimeInSeconds: 1,
    ...options,
  };
  const target = partition === null ? [] : [partition];
  reading.subscription = client.subscribe(...target, reading.handlers, all);
  return reading;
}

// Reads the first events of a partition from a position on, and closes.
export async function readSome(partition, count, options = {}) {
  const client = consumer();
  const reading = read(client, partition, options);
  const events = await reading.take(count);
  await reading.close();
  return events;
}

export const bodies = (events) => events.map((event) => event.body);
