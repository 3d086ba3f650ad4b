// The unmodified openai package for JavaScript against the gateway.
//
// Environment: as in `openai_checks.py`. The package is resolved from SDK_FOLDER.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.SDK_FOLDER}/`));
const OpenAI = require("openai").default;

const CHAT = "@cf/meta/llama-3.1-8b-instruct";
const EMBED = "@cf/baai/bge-base-en-v1.5";
// Events are written at least every 100 ms; the rest is a busy machine.
const EVENTS_LIMIT_MS = 60_000;
// An event is handed over a moment after its answer: this is many such moments.
const SETTLE_MS = 400;

const demo = new OpenAI({ baseURL: `${process.env.DEMO_URL}/v1`, apiKey: "demo-key" });
const crowded = new OpenAI({ baseURL: `${process.env.CROWDED_URL}/v1`, apiKey: "sdk-key" });

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const ask = (client, options = {}, request = {}) => {
  const { prompt = "echo: a warm gate", model = CHAT, ...rest } = options;
  const body = { model, messages: [{ role: "user", content: prompt }], ...rest };
  return client.chat.completions.create(body, request);
};

const collect = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};

const joined = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? "").join("");

// A line being written has no end yet.
const events = () =>
  readFileSync(process.env.EVENTS_FILE, "utf8").split("\n").slice(0, -1).map((l) => JSON.parse(l));

const until = async (condition, what) => {
  const end = Date.now() + EVENTS_LIMIT_MS;
  while (!(await condition())) {
    assert(Date.now() < end, `${what}: not within ${EVENTS_LIMIT_MS} ms`);
    await pause(10);
  }
};

// Waits until all events that were handed over are written, however slow the disk.
const settled = async () => {
  await pause(SETTLE_MS);
  await until(async () => {
    const state = await fetch(`${process.env.CROWDED_ADMIN}/state`);
    const { emitted, written, dropped } = (await state.json()).events;
    return emitted === written + dropped;
  }, "all events written");
};

// How many events there are, those of earlier requests all written.
const mark = async () => {
  await settled();
  return events().length;
};

const requestsSince = async (before, wanted) => {
  await until(() => events().length >= before + wanted, `${wanted} events`);
  await settled();
  return events().slice(before);
};

// While `work` runs, the one permit of the model `busy` is taken by a long stream.
const whileBusy = async (work) => {
  const holder = await ask(crowded, {
    model: "busy", stream: true, max_tokens: 10_000, ignore_eos: true, prompt: "hold the permit",
  });
  const iterator = holder[Symbol.asyncIterator]();
  await iterator.next();
  const before = await mark();
  try {
    await work();
  } finally {
    holder.controller.abort();
    const left = (event) => event.outcome === "cut-by-client";
    await until(() => events().slice(before).some(left), "the long stream's event");
  }
};

const checks = {
  "a chat is answered": async () => {
    const answer = await ask(demo);
    assert.equal(answer.choices[0].message.content, "a warm gate");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.completion_tokens, 3);
    assert(answer._request_id, "no x-request-id");
  },
  "a stream asked without usage carries none": async () => {
    const chunks = await collect(await ask(demo, { stream: true }));
    assert.equal(joined(chunks), "a warm gate");
    assert(chunks.every((chunk) => !chunk.usage), "usage nobody asked for");
    assert(chunks.every((chunk) => chunk.choices.length === 1), "a chunk without choices");
  },
  "a stream asked for usage carries it once, last": async () => {
    const options = { stream: true, stream_options: { include_usage: true } };
    const chunks = await collect(await ask(demo, options));
    assert.equal(joined(chunks), "a warm gate");
    const usages = chunks.filter((chunk) => chunk.usage).map((c) => c.usage.completion_tokens);
    assert.deepEqual(usages, [3]);
    assert.deepEqual(chunks.at(-1).choices, []);
  },
  "embeddings agree in base64, the client's default, and float": async () => {
    const input = ["a", "b"];
    const packed = await demo.embeddings.create({ model: EMBED, input });
    const plain = await demo.embeddings.create({ model: EMBED, input, encoding_format: "float" });
    for (const index of [0, 1]) {
      const [one, other] = [packed.data[index].embedding, plain.data[index].embedding];
      assert.equal(one.length, 768);
      assert(Array.from(one).every((x, at) => Math.abs(x - other[at]) < 1e-6));
    }
  },
  "models are listed, and retrieved by a name with slashes": async () => {
    const names = (await collect(await demo.models.list())).map((model) => model.id);
    assert(names.includes(CHAT) && names.includes(EMBED), names.join());
    assert.equal((await demo.models.retrieve(CHAT)).id, CHAT);
    await assert.rejects(demo.models.retrieve("@cf/nobody/nothing"), OpenAI.NotFoundError);
  },
  "a wrong key is an AuthenticationError": async () => {
    const stranger = demo.withOptions({ apiKey: "not-a-key" });
    await assert.rejects(ask(stranger), (error) => {
      assert(error instanceof OpenAI.AuthenticationError, error.constructor.name);
      assert.equal(error.code, "invalid_api_key");
      return true;
    });
  },
  "an unknown model is a NotFoundError": async () => {
    await assert.rejects(ask(demo, { model: "nothing-8b" }), (error) => {
      assert(error instanceof OpenAI.NotFoundError, error.constructor.name);
      assert.equal(error.code, "model_not_found");
      return true;
    });
  },
  "over capacity is a RateLimitError after three tries": async () => {
    await whileBusy(async () => {
      const before = await mark();
      const begun = Date.now();
      await assert.rejects(ask(crowded, { model: "busy" }), (error) => {
        assert(error instanceof OpenAI.RateLimitError, error.constructor.name);
        assert.equal(error.code, "out_of_capacity");
        return true;
      });
      assert(Date.now() - begun >= 1_900, "Retry-After was not obeyed");
      const refused = await requestsSince(before, 3);
      assert.deepEqual(refused.map((event) => event.error_code), ["3040", "3040", "3040"]);
    });
  },
  "over capacity with retries off is one cheap request": async () => {
    await whileBusy(async () => {
      const before = await mark();
      await assert.rejects(
        ask(crowded, { model: "busy" }, { maxRetries: 0 }), OpenAI.RateLimitError,
      );
      assert.equal((await requestsSince(before, 1)).length, 1);
    });
  },
  "a stream read to its end counts as completed": async () => {
    const before = await mark();
    const chunks = await collect(await ask(crowded, { model: "free", stream: true }));
    assert.equal(joined(chunks), "a warm gate");
    const seen = await requestsSince(before, 1);
    assert.deepEqual(seen.map((event) => event.outcome), ["completed"]);
  },
  "a backend that breaks mid-stream is an APIError, never a quiet end": async () => {
    const stream = await ask(crowded, {
      model: "free", stream: true, prompt: "hello", x_sim_fault: "reset-mid-stream",
    });
    await assert.rejects(collect(stream), OpenAI.APIError);
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok openai-js: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL openai-js: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
