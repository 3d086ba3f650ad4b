// Streams, webhooks and file outputs of durable jobs with the unmodified replicate package for JavaScript.
//
// Environment: as in `replicate_events.py`. The packages are resolved from SDK_FOLDER.

import assert from "node:assert/strict";
import http from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.SDK_FOLDER}/`));
const Replicate = require("replicate");
const standardwebhooks = require("standardwebhooks");
const svix = require("svix");

const [ECHO, LONG, IMAGE] = ["acme/echo", "acme/long", "acme/image"];
const INPUT = { prompt: "echo: a warm gate" };
const EVENTS_MIN = 6000;
const PATIENCE_MS = 60_000;
const PORT = Number(process.env.RECEIVER_PORT);

const options = { auth: "sdk-key", baseUrl: `${process.env.CROWDED_URL}/v1` };
const sdk = new Replicate(options);

// Webhooks that arrive until one of them is an end, as headers and body.
const received = async (begin) => {
  const arrived = [];
  let over;
  const ended = new Promise((resolve) => (over = resolve));
  const server = http.createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    response.end();
    arrived.push({ headers: request.headers, body });
    if (JSON.parse(body).completed_at) over();
  });
  await new Promise((resolve) => server.listen(PORT, "127.0.0.1", resolve));
  const limit = setTimeout(() => over(), PATIENCE_MS);
  try {
    const made = await begin(`http://127.0.0.1:${PORT}/`);
    await ended;
    return [made, arrived];
  } finally {
    clearTimeout(limit);
    server.closeAllConnections();
    server.close();
  }
};

// Checks a webhook with three libraries, each of which refuses another body.
const verified = async ({ headers, body }, secret) => {
  const changed = body.replace('"id"', '"di"');
  assert.equal(await Replicate.validateWebhook({ headers, body }, secret), true);
  assert.equal(await Replicate.validateWebhook({ headers, body: changed }, secret), false);
  for (const library of [standardwebhooks, svix]) {
    const hook = new library.Webhook(secret);
    hook.verify(body, headers);
    assert.throws(() => hook.verify(changed, headers), library.WebhookVerificationError);
  }
  return JSON.parse(body);
};

const checks = {
  "a stream is the output in pieces, and then done": async () => {
    const events = [];
    for await (const event of sdk.stream(ECHO, { input: INPUT })) events.push(event);
    const text = events.slice(0, -1).map((event) => event.data).join("");
    assert.equal(text, "a warm gate");
    assert(events.slice(0, -1).every((event) => event.event === "output"));
    assert.deepEqual([events.at(-1).event, events.at(-1).data], ["done", "{}"]);
  },
  "a stream of more than 6,000 events is whole and in order": async () => {
    const ids = new Set();
    let [text, last] = ["", null];
    for await (const event of sdk.stream(LONG, { input: { prompt: "hi" } })) {
      ids.add(event.id);
      if (event.event === "output") text += event.data;
      last = event;
    }
    assert.equal(last.event, "done");
    assert(ids.size > EVENTS_MIN, `${ids.size} events`);
    const [newest] = (await sdk.predictions.list()).results;
    assert.equal(newest.model, LONG);
    assert.equal(text, (await sdk.predictions.get(newest.id)).output.join(""));
  },
  "webhooks are signed for replicate, standardwebhooks and svix, and the end comes last": async () => {
    const { key } = await sdk.webhooks.default.secret.get();
    const [made, arrived] = await received((webhook) =>
      sdk.predictions.create({
        model: ECHO, input: INPUT, webhook, webhook_events_filter: ["start", "completed"],
      }),
    );
    const seen = await Promise.all(arrived.map((one) => verified(one, key)));
    assert(seen.every((one) => one.id === made.id));
    assert.deepEqual(seen.at(-1), await sdk.predictions.get(made.id));
  },
  "a training sends its end": async () => {
    const { key } = await sdk.webhooks.default.secret.get();
    const { id } = (await sdk.models.get("acme", "echo")).latest_version;
    const [made, arrived] = await received((webhook) =>
      sdk.trainings.create("acme", "echo", id, {
        destination: "acme/tuned", input: { steps: 3 }, webhook, webhook_events_filter: ["completed"],
      }),
    );
    assert.equal(arrived.length, 1);
    const told = await verified(arrived[0], key);
    assert.deepEqual([told.id, told.status], [made.id, "succeeded"]);
  },
  // Written by hand: the package's own strategy `data-uri` sends its client in place of the input (1.4.0).
  "a data URI in an input is taken": async () => {
    const prompt = `data:text/plain;base64,${Buffer.from("a warm gate").toString("base64")}`;
    const made = await sdk.predictions.create({ model: ECHO, input: { prompt }, wait: true });
    assert.deepEqual([made.status, made.input.prompt], ["succeeded", prompt]);
  },
  "a picture is a file whose bytes are the picture": async () => {
    const output = await sdk.run(IMAGE, { input: { prompt: "a gate" } });
    const bytes = Buffer.from(await (await output.blob()).arrayBuffer());
    assert.equal(bytes.subarray(0, 4).toString("latin1"), "\x89PNG");
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok replicate-js events: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL replicate-js events: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
