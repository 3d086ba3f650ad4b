// File outputs behind an https `public_url`, with the unmodified replicate package for JavaScript.
// Environment: SECURE_URL, NODE_EXTRA_CA_CERTS with the authority of its certificate, SDK_FOLDER.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.SDK_FOLDER}/`);
const Replicate = require("replicate");

const BASE = process.env.SECURE_URL;
const IMAGE = "acme/image";
const sdk = new Replicate({ auth: "secure-key", baseUrl: `${BASE}/v1` });
const isPicture = (bytes) => assert.equal(bytes.subarray(0, 4).toString("latin1"), "\x89PNG");

const checks = {
  "a picture is a file with a signed https URL that needs no key": async () => {
    const output = await sdk.run(IMAGE, { input: { prompt: "a gate" } });
    const url = output.url();
    assert.ok(url.href.startsWith(`${BASE}/v1/files/`), url.href);
    const bytes = Buffer.from(await (await output.blob()).arrayBuffer());
    isPicture(bytes);
    const plain = await fetch(url);
    assert.equal(plain.status, 200);
    assert.deepEqual(Buffer.from(await plain.arrayBuffer()), bytes);
  },
  "a picture is a stream of its bytes": async () => {
    const output = await sdk.run(IMAGE, { input: { prompt: "a gate" } });
    const pieces = [];
    for await (const piece of output) pieces.push(piece);
    isPicture(Buffer.concat(pieces));
  },
  "a picture of more than 1 MiB is the input of another job as an uploaded file": async () => {
    const output = await sdk.run(IMAGE, { input: { prompt: "a gate" } });
    const image = Buffer.from(await (await output.blob()).arrayBuffer());
    assert.ok(image.length > 2 ** 20, `${image.length} bytes`);
    let made = await sdk.predictions.create({ model: IMAGE, input: { prompt: "again", image } });
    assert.ok(made.input.image.startsWith(`${BASE}/v1/files/`), JSON.stringify(made.input));
    made = await sdk.wait(made, { interval: 50 });
    assert.equal(made.status, "succeeded");
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok replicate-js files: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL replicate-js files: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
