// The unmodified replicate package for JavaScript against the gateway's durable jobs.
//
// Environment: as in `openai_checks.py`. `acme/echo` answers at once, `acme/slow` and `acme/lone`, which has one permit, after a minute. The trainer of
// `acme/echo` answers with the request that it was sent.
// The package is resolved from SDK_FOLDER.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.SDK_FOLDER}/`));
const Replicate = require("replicate");

const [ECHO, SLOW, LONE] = ["acme/echo", "acme/slow", "acme/lone"];
const INPUT = { prompt: "echo: a warm gate" };
// One more than a part of a list has.
const MANY = 101;
const START_LIMIT_MS = 30_000;

// `headers` go with every request: the package has no option for them.
const client = (auth = "sdk-key", headers = {}) =>
  new Replicate({
    auth,
    baseUrl: `${process.env.CROWDED_URL}/v1`,
    fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, ...headers } }),
  });

const sdk = client();

const create = (options = {}, by = sdk) =>
  by.predictions.create({ model: ECHO, input: INPUT, ...options });

const newestVersion = async () => (await sdk.models.get("acme", "echo")).latest_version.id;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const started = async (id) => {
  const end = Date.now() + START_LIMIT_MS;
  while ((await sdk.predictions.get(id)).status !== "processing") {
    assert(Date.now() < end, `not started within ${START_LIMIT_MS} ms`);
    await pause(20);
  }
};

const refusedWith = async (status, work) => {
  await assert.rejects(work, (error) => {
    assert.equal(error.name, "ApiError", String(error));
    assert.equal(error.response.status, status, String(error));
    return true;
  });
};

const checks = {
  "run waits for the output of a model, and of a version": async () => {
    assert.equal((await sdk.run(ECHO, { input: INPUT })).join(""), "a warm gate");
    const version = await newestVersion();
    assert.equal((await sdk.run(`${ECHO}:${version}`, { input: INPUT })).join(""), "a warm gate");
  },
  "the demo runs, streams, shows and lists predictions": async () => {
    const model = "meta/llama-3.1-8b-instruct";
    const demo = new Replicate({ auth: "demo-key", baseUrl: `${process.env.DEMO_URL}/v1` });
    const input = { prompt: "hello" };
    assert((await demo.run(model, { input, wait: { mode: "block", timeout: 5 } })).join(""));
    let text = "";
    for await (const event of demo.stream(model, { input })) text += event.data;
    assert(text.length > 0);
    const made = await demo.predictions.create({ model, input, wait: 5 });
    const ended = await demo.wait(made, { interval: 50 });
    assert.equal(ended.status, "succeeded");
    assert((await demo.predictions.list()).results.some(({ id }) => id === made.id));
    await refusedWith(422, demo.predictions.create({ model, input: { prompt: 7 } }));
  },
  "run polls until the end and tells its progress": async () => {
    const seen = [];
    const options = { input: INPUT, wait: { mode: "poll", interval: 50 } };
    const output = await sdk.run(ECHO, options, (one) => seen.push(one.status));
    assert.equal(output.join(""), "a warm gate");
    assert.equal(seen.at(-1), "succeeded");
  },
  "run that waits for one second goes on polling": async () => {
    const seen = [];
    const aborter = new AbortController();
    const options = { input: INPUT, wait: { mode: "block", timeout: 1 }, signal: aborter.signal };
    await sdk.run(SLOW, options, (one) => {
      seen.push(one.status);
      if (one.status === "processing") aborter.abort();
    });
    assert.deepEqual([...new Set(seen)], ["starting", "processing", "canceled"]);
  },
  "what the model refuses fails with its sentence": async () => {
    const input = { prompt: "x", x_sim_fault: "status=400" };
    await assert.rejects(sdk.run(ECHO, { input }), /Prediction failed: ./);
  },
  "an input that does not fit is refused at once": async () => {
    await refusedWith(422, sdk.run(ECHO, { input: { prompt: 7 } }));
  },
  "a create of an account whose day is spent is a 429": async () => {
    const spent = client("spent-key");
    // The other package may have spent it.
    await create({ wait: true }, spent).catch(() => {});
    await refusedWith(429, create({}, spent));
  },
  "a deadline before the start is canceled for the library, aborted in truth": async () => {
    const held = await create({ model: LONE });
    await started(held.id);
    const late = await create({ model: LONE }, client("sdk-key", { "Cancel-After": "5s" }));
    const ended = await sdk.wait(late, { interval: 100 });
    assert.deepEqual([ended.status, ended.started_at], ["canceled", null]);
    assert.equal(ended.infergate.status, "aborted");
    await sdk.predictions.cancel(held.id);
  },
  "a prediction is created, got and waited for": async () => {
    const made = await create();
    assert.deepEqual([made.model, made.input, made.error], [ECHO, INPUT, null]);
    const ended = await sdk.wait(made, { interval: 50 });
    assert.equal(ended.status, "succeeded");
    assert.equal(ended.output.join(""), "a warm gate");
    assert(ended.created_at <= ended.started_at && ended.started_at <= ended.completed_at);
    assert.deepEqual(await sdk.predictions.get(made.id), ended);
    const version = await newestVersion();
    const other = await create({ model: undefined, version, wait: true });
    assert.deepEqual([other.status, other.version], ["succeeded", version]);
  },
  "wait: 5 answers with the end, or after five seconds with a prediction that goes on": async () => {
    assert.equal((await create({ wait: 5 })).status, "succeeded");
    const begun = Date.now();
    const made = await create({ model: SLOW, wait: 5 });
    assert(Date.now() - begun > 4_000);
    assert.equal(made.status, "starting");
    assert.equal((await sdk.predictions.get(made.id)).status, "processing");
    assert.equal((await sdk.predictions.cancel(made.id)).status, "canceled");
  },
  "a running prediction is canceled, once": async () => {
    const made = await create({ model: SLOW });
    await started(made.id);
    const canceled = await sdk.predictions.cancel(made.id);
    assert.deepEqual([canceled.status, canceled.output], ["canceled", null]);
    assert.deepEqual(await sdk.predictions.cancel(made.id), canceled);
    assert.equal((await sdk.wait(made, {})).status, "canceled");
  },
  "an abort signal of run cancels the prediction": async () => {
    const aborter = new AbortController();
    const seen = [];
    const options = {
      input: INPUT, wait: { mode: "poll", interval: 50 }, signal: aborter.signal,
    };
    const output = await sdk.run(SLOW, options, (one) => {
      seen.push(one);
      if (one.status === "processing") aborter.abort();
    });
    assert.equal(output, null);
    assert.equal((await sdk.predictions.get(seen[0].id)).status, "canceled");
  },
  "an abort signal of create ends the wait, and the prediction goes on": async () => {
    const aborter = new AbortController();
    const making = create({ model: SLOW, wait: true, signal: aborter.signal });
    setTimeout(() => aborter.abort(), 500);
    await assert.rejects(making, { name: "AbortError" });
    const [newest] = (await sdk.predictions.list()).results;
    assert.equal(newest.model, SLOW);
    await started(newest.id);
    await sdk.predictions.cancel(newest.id);
  },
  "the list comes newest first in parts of 100, each prediction once": async () => {
    const first = await create();
    const made = await Promise.all(Array.from({ length: MANY - 2 }, () => create()));
    const last = await create();
    const listed = [];
    for await (const page of sdk.paginate(sdk.predictions.list)) listed.push(page);
    assert.equal(listed[0].length, 100);
    const ids = listed.flat().map((one) => one.id);
    assert.equal(new Set(ids).size, ids.length);
    assert(made.every((one) => ids.includes(one.id)), "a prediction is not listed");
    assert.deepEqual([ids[0], ids[MANY - 1]], [last.id, first.id]);
  },
  "models, versions, hardware, account and search show what there is": async () => {
    const model = await sdk.models.get("acme", "echo");
    assert.deepEqual([model.owner, model.name], ["acme", "echo"]);
    const { id } = model.latest_version;
    const versions = await sdk.models.versions.list("acme", "echo");
    assert.deepEqual(versions.results.map((one) => one.id), [id]);
    const version = await sdk.models.versions.get("acme", "echo", id);
    assert.equal(version.openapi_schema.components.schemas.Output.type, "array");
    assert((await sdk.hardware.list()).every((one) => one.sku && one.name));
    assert.equal((await sdk.accounts.current()).username, "sdk");
    const found = await sdk.models.search("ECHO");
    assert.deepEqual(found.results.map((one) => one.name), ["echo"]);
    assert.deepEqual((await sdk.collections.list()).results, []);
  },
  "the list of models is parsed, beside OpenAI's under the same path": async () => {
    const listed = (await sdk.models.list()).results.map((one) => `${one.owner}/${one.name}`);
    assert(listed.includes(ECHO) && listed.includes(SLOW), listed.join());
  },
  "a deployment is made, shown, listed, changed, run and deleted": async () => {
    const version = await newestVersion();
    const wanted = {
      name: "javascript", model: ECHO, version, hardware: "gpu-a100", min_instances: 0, max_instances: 1,
    };
    const made = await sdk.deployments.create(wanted);
    assert.deepEqual([made.owner, made.name, made.current_release.number], ["sdk", "javascript", 1]);
    assert.deepEqual(await sdk.deployments.get("sdk", "javascript"), made);
    const listed = (await sdk.deployments.list()).results.map((one) => one.name);
    assert(listed.includes("javascript"), listed.join());
    const changed = await sdk.deployments.update("sdk", "javascript", { max_instances: 3 });
    assert.equal(changed.current_release.number, 2);
    assert.equal(changed.current_release.configuration.max_instances, 3);
    const begun = await sdk.deployments.predictions.create("sdk", "javascript", { input: INPUT });
    const ended = await sdk.wait(begun, { interval: 50 });
    assert.deepEqual([ended.status, ended.deployment], ["succeeded", "sdk/javascript"]);
    await refusedWith(404, client("other-key").deployments.get("sdk", "javascript"));
    await refusedWith(403, client("other-key").deployments.create(wanted));
    await refusedWith(403, sdk.deployments.delete("acme", "prod"));
    assert.equal(await sdk.deployments.delete("sdk", "javascript"), true);
    await refusedWith(404, sdk.deployments.get("sdk", "javascript"));
  },
  "a wrong key is an ApiError with status 401": async () => {
    const stranger = client("not-a-key");
    await refusedWith(401, stranger.run(ECHO, { input: INPUT }));
    await refusedWith(401, stranger.accounts.current());
  },
  "an unknown version is a 422, an unknown model, version of a model or id a 404": async () => {
    const unknown = "0".repeat(64);
    await refusedWith(422, create({ model: undefined, version: unknown }));
    await refusedWith(404, create({ model: "acme/nothing" }));
    await refusedWith(404, sdk.models.get("acme", "nothing"));
    await refusedWith(404, sdk.models.versions.get("acme", "echo", unknown));
    await refusedWith(404, sdk.predictions.get("a".repeat(26)));
    await refusedWith(404, sdk.predictions.get("nothing"));
    await refusedWith(404, sdk.predictions.cancel("a".repeat(26)));
    const made = await create({ wait: true });
    await refusedWith(404, client("other-key").predictions.get(made.id));
  },
  "a create that is repeated with its key is the same prediction": async () => {
    const eager = client("sdk-key", { "Idempotency-Key": `js-${Date.now()}-${Math.random()}` });
    const [first, second] = [await create({}, eager), await create({ wait: true }, eager)];
    assert.deepEqual([second.id, second.status], [first.id, "succeeded"]);
    await refusedWith(422, create({ input: { prompt: "another" } }, eager));
  },
  "files are created, shown, listed and deleted": async () => {
    const bytes = new Blob(["0123456789"], { type: "text/plain" });
    const made = await sdk.files.create(bytes, { k: 1 });
    assert.deepEqual([made.content_type, made.size, made.metadata], ["text/plain", 10, { k: 1 }]);
    assert.equal((await sdk.files.get(made.id)).id, made.id);
    assert((await sdk.files.list()).results.some((file) => file.id === made.id));
    await refusedWith(404, client("other-key").files.get(made.id));
    assert.equal(await sdk.files.delete(made.id), true);
    await refusedWith(404, sdk.files.get(made.id));
  },
  "a file in an input is uploaded": async () => {
    const made = await create({ input: { prompt: new Blob(["a warm gate"]) }, wait: true });
    assert.equal(made.status, "succeeded");
    assert.match(made.input.prompt, /\/v1\/files\//);
  },
  "Cancel-After ends a prediction by itself, and is refused when it is no span": async () => {
    const hasty = client("sdk-key", { "Cancel-After": "5s" });
    const begun = Date.now();
    const made = await create({ model: SLOW }, hasty);
    assert.equal((await sdk.wait(made, { interval: 100 })).status, "canceled");
    assert(Date.now() - begun > 4_000);
    await refusedWith(422, create({}, client("sdk-key", { "Cancel-After": "soon" })));
  },
  "a training is created, got, listed and canceled": async () => {
    const train = async (input) =>
      sdk.trainings.create("acme", "echo", await newestVersion(), {
        destination: "acme/tuned",
        input,
      });
    const made = await train({ steps: 3 });
    assert.deepEqual([made.model, made.destination], [ECHO, "acme/tuned"]);
    const end = Date.now() + START_LIMIT_MS;
    let got = made;
    while (got.status !== "succeeded") {
      assert(Date.now() < end, `not over within ${START_LIMIT_MS} ms`);
      await pause(20);
      got = await sdk.trainings.get(made.id);
    }
    assert.equal(got.output.steps, 3);
    assert.equal(got.output.context.destination, "acme/tuned");
    assert.equal((await sdk.trainings.list()).results[0].id, made.id);
    const held = await train({ "x-sim-fault": "stall" });
    while ((await sdk.trainings.get(held.id)).status !== "processing") await pause(20);
    assert.equal((await sdk.trainings.cancel(held.id)).status, "canceled");
    await refusedWith(404, client("other-key").trainings.get(made.id));
    const { id } = (await sdk.models.get("acme", "slow")).latest_version;
    await refusedWith(422, sdk.trainings.create("acme", "slow", id, { destination: "a/b", input: {} }));
  },
};

let failed = false;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok replicate-js: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL replicate-js: ${name}: ${String(error).replaceAll("\n", " ").slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
