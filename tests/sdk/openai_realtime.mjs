// The unmodified openai package for JavaScript over WebSockets: the realtime API.
//
// Environment: SECURE_URL, NODE_EXTRA_CA_CERTS with the authority of its certificate, SDK_FOLDER. The package speaks TLS alone.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.SDK_FOLDER}/`));
const OpenAI = require("openai").default;
const { OpenAIRealtimeWS } = require("openai/realtime/ws");

const opened = (model, apiKey = "secure-key") =>
  new OpenAIRealtimeWS({ model }, new OpenAI({ baseURL: `${process.env.SECURE_URL}/v1`, apiKey }));

// The events up to the first one of this type.
const until = (connection, type) => new Promise((resolve, reject) => {
  const events = [];
  connection.on("error", reject);
  connection.socket.on("close", (code) => reject(new Error(`closed with ${code} before ${type}`)));
  connection.on("event", (event) => {
    events.push(event);
    if (event.type === type) resolve(events);
  });
});

const turn = async (connection) => {
  const done = until(connection, "response.done");
  connection.send({ type: "response.create" });
  const events = await done;
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  return deltas.map((event) => event.delta).join("");
};

const checks = {
  "two responses in one session": async () => {
    const connection = opened("live");
    await until(connection, "session.created");
    const updated = until(connection, "session.updated");
    connection.send({ type: "session.update", session: { type: "realtime", output_modalities: ["text"] } });
    await updated;
    assert((await turn(connection)).length > 0);
    assert((await turn(connection)).length > 0);
    const closed = new Promise((resolve) => connection.socket.on("close", resolve));
    connection.close({ code: 1000, reason: "done" });
    assert.equal(await closed, 1000);
  },
  "an error of the server is an event of the session": async () => {
    const connection = opened("live");
    await until(connection, "session.created");
    const failed = new Promise((resolve) => connection.on("error", resolve));
    connection.send({ type: "no.such.event" });
    assert.match((await failed).message, /no\.such\.event/);
    connection.close();
  },
  "a model that is unknown and a key that is wrong are refused before the session": async () => {
    for (const [model, key, status] of [["none", "secure-key", 404], ["live", "wrong", 401]]) {
      await assert.rejects(until(opened(model, key), "session.created"), new RegExp(`${status}`));
    }
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok openai-js realtime: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL openai-js realtime: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
