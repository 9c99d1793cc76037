// Uses the tools with the TypeScript SDK: `drive.mjs URL KEY 1|auto|legacy`, where 1 is the SDK 1.x, the others are 2.x.
import assert from "node:assert/strict";

const [url, key, mode] = process.argv.slice(2);
const [{ Client, StreamableHTTPClientTransport }, elicitation] =
  mode === "1"
    ? [
        {
          ...(await import("@modelcontextprotocol/sdk/client/index.js")),
          ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
        },
        (await import("@modelcontextprotocol/sdk/types.js")).ElicitRequestSchema,
      ]
    : [await import("@modelcontextprotocol/client"), "elicitation/create"];

const client = new Client(
  { name: "drive", version: "1" },
  { capabilities: { elicitation: { form: {} } }, ...(mode === "1" ? {} : { versionNegotiation: { mode } }) },
);
client.setRequestHandler(elicitation, async () => ({ action: "accept", content: { answer: "Ada" } }));
const headers = { Authorization: `Bearer ${key}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const call = async (name, args) => (await client.callTool({ name, arguments: args })).structuredContent;
// Runs a cell to its end, however long the gateway takes for it.
const run = async (args) => {
  let told = await call("run_code", args);
  while (told.status === "running") told = await call("wait", { run: told.run });
  return told;
};
// Does one command of the debugger, however long the cell then runs.
const debug = async (args) => {
  let seen = await call("debug", args);
  while (seen.state === "running") seen = await call("debug", { session: args.session, command: "wait" });
  return seen;
};
const waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n7";

assert.equal((await client.listTools()).tools.length, 6);
const first = await run({ code: "x = 40\nx + 2" });
assert.equal(first.result, "42");
const { session } = first;
assert.equal((await run({ session, code: "input('Name? ') + str(x)" })).result, "'Ada40'");
let told = await call("run_code", { session, code: waits });
assert.equal(told.status, "running");
await call("files", { session, action: "write", path: "go", content: "" });
while (told.status === "running") told = await call("wait", { run: told.run });
assert.equal(told.result, "7");
await call("files", { session, action: "write", path: "ü.txt", content: "hé" });
assert.equal((await call("files", { session, action: "read", path: "ü.txt" })).content, "hé");
assert.ok((await call("checkpoint", { session, action: "list" })).checkpoints);
const breakpoints = [{ line: 2 }];
told = await debug({ session, command: "launch", code: "y = 6\ny * 7", breakpoints });
assert.deepEqual([told.state, told.frames[0].line], ["stopped", 2]);
assert.equal((await debug({ session, command: "continue" })).state, "ended");
assert.equal((await call("session", { session, action: "end" })).state, "ended");
await client.close();
