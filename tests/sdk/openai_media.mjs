// The unmodified openai package for JavaScript: images, speech, transcriptions and responses.
//
// Environment: as in `openai_checks.py`. The package is resolved from SDK_FOLDER.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.SDK_FOLDER}/`));
const OpenAI = require("openai").default;
const { toFile } = require("openai");

const client = new OpenAI({
  baseURL: `${process.env.CROWDED_URL}/v1`, apiKey: "sdk-key", maxRetries: 0,
});

const collect = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

// A silent WAV file of 8 kHz.
const sound = (seconds) => {
  const file = Buffer.alloc(44 + 16_000 * seconds);
  file.write("RIFF", 0);
  file.writeUInt32LE(36 + 16_000 * seconds, 4);
  file.write("WAVEfmt ", 8);
  [[16, 16, 4], [20, 1, 2], [22, 1, 2], [24, 8_000, 4], [28, 16_000, 4], [32, 2, 2], [34, 16, 2]]
    .forEach(([at, value, bytes]) => file.writeUIntLE(value, at, bytes));
  file.write("data", 36);
  file.writeUInt32LE(16_000 * seconds, 40);
  return toFile(file, "a.wav");
};

const checks = {
  "images are made, whole and as partial images": async () => {
    const answer = await client.images.generate({ model: "pictures", prompt: "a cat", n: 2 });
    assert.equal(answer.data.length, 2);
    assert(Buffer.from(answer.data[0].b64_json, "base64").subarray(1, 4).equals(Buffer.from("PNG")));
    const stream = await client.images.generate({
      model: "pictures", prompt: "a cat", stream: true, partial_images: 1,
    });
    const kinds = (await collect(stream)).map((event) => event.type);
    assert.deepEqual(kinds, ["image_generation.partial_image", "image_generation.completed"]);
  },
  "a text is spoken": async () => {
    const answer = await client.audio.speech.create({ model: "voice", voice: "alloy", input: "one two" });
    const bytes = Buffer.from(await answer.arrayBuffer());
    assert.equal(bytes.subarray(0, 4).toString(), "RIFF");
    assert.equal(bytes.length, 44 + 2 * 1_600);
  },
  "a sound is written down, whole and streamed": async () => {
    const options = { model: "ears", prompt: "echo: good morning" };
    const answer = await client.audio.transcriptions.create({ file: await sound(1), ...options });
    assert.equal(answer.text, "good morning");
    assert.equal(answer.usage.seconds, 1);
    const stream = await client.audio.transcriptions.create({
      file: await sound(1), stream: true, ...options,
    });
    assert.equal((await collect(stream)).at(-1).text, "good morning");
  },
  "a response is given, whole and streamed": async () => {
    const options = { model: "acme/echo", input: "echo: a warm gate" };
    assert.equal((await client.responses.create(options)).output_text, "a warm gate");
    const events = await collect(await client.responses.create({ stream: true, ...options }));
    assert.equal(events.at(-1).response.output[0].content[0].text, "a warm gate");
  },
  "a server that breaks off is an APIError, never a quiet end": async () => {
    const stream = await client.responses.create({
      model: "acme/echo", input: "hello there", stream: true, x_sim_fault: "reset-mid-stream",
    });
    await assert.rejects(collect(stream), OpenAI.APIError);
  },
  "a model of another task is a BadRequestError": async () => {
    await assert.rejects(client.images.generate({ model: "voice", prompt: "x" }), (error) => {
      assert(error instanceof OpenAI.BadRequestError, error.constructor.name);
      assert.equal(error.param, "/model");
      return true;
    });
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok openai-js media: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL openai-js media: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
