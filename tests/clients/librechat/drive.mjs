// Uses the code tools of LibreChat's agents as LibreChat does, and prints what the model and LibreChat get.
// Its modules for `import` do not load beside the OpenTelemetry that npm chooses; LibreChat itself uses `require`, too.
import { createRequire } from 'node:module';

const { createBashExecutionTool, createCodeExecutionTool, createProgrammaticToolCallingTool } = createRequire(`${process.cwd()}/`)('@librechat/agents');

const { BASE_URL: baseUrl, TOKEN, FILE, BATCH } = process.env;
const authHeaders = () => ({ Authorization: `Bearer ${TOKEN}` });
const stateful = { baseUrl, authHeaders, statefulSessions: true, executionProfile: 'stateful', runtimeSessionHint: 'chat1' };
const file = { id: FILE, storage_session_id: BATCH, name: 'in.csv', kind: 'user', resource_id: 'ada' };
const call = async (tool, input, more = {}) =>
  (await tool.invoke({ type: 'tool_call', id: 'c', name: tool.name, args: input, ...more }).catch((e) => ({ content: e.message })));

const code = createCodeExecutionTool({ ...stateful, files: [file] });
const bash = createBashExecutionTool(stateful);
const fresh = createCodeExecutionTool({ baseUrl, authHeaders });
const told = {
  first: await call(code, { lang: 'py', code: "x = open('/mnt/data/in.csv').read()\nopen('/mnt/data/out.csv', 'w').write(x * 2)\nprint('read', x)" }),
  second: await call(code, { lang: 'py', code: 'print(x, 41 + 1)' }),
  shell: await call(bash, { command: 'cat /mnt/data/out.csv' }),
  fresh: await call(fresh, { lang: 'py', code: "print('x' in globals())" }),
  failed: await call(fresh, { lang: 'py', code: '1/0' }),
  unknown: await call(fresh, { lang: 'go', code: '1' }),
};

// Code that calls tools of LibreChat, which here are plain functions, two of them at once.
const tools = {
  'get-weather': async ({ city }) => ({ city, sun: city === 'Rom' }),
  fails: async () => { throw new Error('no such thing') },
};
const toolMap = new Map(Object.entries(tools).map(([name, invoke]) => [name, { name, invoke }]));
const toolDefs = Object.keys(tools).map((name) => ({ name, description: name, parameters: { type: 'object', properties: { city: { type: 'string' } } } }));
const calls = createProgrammaticToolCallingTool({ ...stateful, runTimeoutMs: 60000 });
const program = `rom, bonn = await asyncio.gather(get_weather(city='Rom'), get_weather(city='Bonn'))
print(rom['sun'], bonn['sun'], x)
try:
    await fails()
except Exception as error:
    print('failed:', error)
open('/mnt/data/weather.txt', 'w').write('sunny')`;
told.tools = await call(calls, { code: program }, { toolMap, toolDefs });
told.withoutTools = await call(calls, { code: 'print(6 * 7)', tool_manifest: [] }, { toolMap, toolDefs });
const forged = createCodeExecutionTool({ baseUrl, authHeaders: { Authorization: `Bearer ${TOKEN}x` } });
told.forged = await call(forged, { lang: 'py', code: '1' });
console.log(JSON.stringify(Object.fromEntries(Object.entries(told).map(([k, v]) => [k, { content: v.content, artifact: v.artifact }]))));
process.exit(0);
