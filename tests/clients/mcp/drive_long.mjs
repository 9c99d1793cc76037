// Runs a cell of three minutes with the TypeScript SDK 1.x, which gives up after 60 s without an answer.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, key] = process.argv.slice(2);
const client = new Client({ name: "long", version: "1" });
const headers = { Authorization: `Bearer ${key}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const call = async (name, args) => (await client.callTool({ name, arguments: args })).structuredContent;
const code = "import time\nfor n in range(180): time.sleep(1)\nn + 1";
let waits = 0;
let last = await call("run_code", { code, timeout: 300 });
while (last.status === "running") {
  last = await call("wait", { run: last.run });
  waits += 1;
}
console.log(JSON.stringify({ waits, last }));
await client.close();
