// Uses a sandbox from its creation to its end with E2B's npm SDK, unmodified. The SDK reads its settings from the
// environment: `E2B_API_KEY`, and either `E2B_API_URL` and `E2B_SANDBOX_URL` or `E2B_DOMAIN`. The only argument, if there
// is one, is the address of the proxy that knows the domain's names. Prints the sandbox's id.
import assert from 'node:assert/strict'

import { CommandExitError, FileNotFoundError, FilesystemEventType, Sandbox, TimeoutError } from '@e2b/code-interpreter'

const [proxy] = process.argv.slice(2)
const options = proxy ? { proxy } : {}

/** Returns a promise, and a function that fulfils it. */
function event() {
  let happens
  const happened = new Promise((resolve) => (happens = resolve))
  return { happened, happens }
}

async function control(sandbox) {
  assert.ok(await sandbox.isRunning())
  const info = await sandbox.getInfo()
  assert.deepEqual(info.metadata, { 'a b': 'ä&=' })
  assert.deepEqual([info.templateId, info.state], ['code-interpreter-v1', 'running'])
  await sandbox.setTimeout(600_000)
  assert.ok((await sandbox.getInfo()).endAt - info.endAt > 200_000)
  const listed = await Sandbox.list({ query: { metadata: { 'a b': 'ä&=' } }, limit: 1, ...options }).nextItems()
  assert.deepEqual(listed.map((each) => each.sandboxId), [sandbox.sandboxId])
  assert.ok(Array.isArray(await sandbox.getMetrics()))
  const again = await Sandbox.connect(sandbox.sandboxId, options)
  assert.equal((await again.runCode('20 + 1')).text, '21')
}

async function code(sandbox) {
  const lines = []
  const results = []
  const ran = await sandbox.runCode("import os, sys\nprint(os.environ['WHO'])\nprint('err', file=sys.stderr)\nx = 20\nx + 1", {
    onStdout: (message) => lines.push(message.line),
    onStderr: (message) => lines.push(message.line),
    onResult: (result) => results.push(result.text),
  })
  assert.deepEqual([ran.text, ran.logs.stdout, ran.logs.stderr], ['21', ['me\n'], ['err\n']])
  assert.deepEqual([lines, results], [['me\n', 'err\n'], ['21']])
  assert.equal((await sandbox.runCode("os.environ['WHO']", { envs: { WHO: "it's me" } })).text, "it's me")
  assert.equal((await sandbox.runCode("os.environ['WHO']")).text, 'me')
  const [plot] = (await sandbox.runCode('import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()')).results
  assert.equal(Buffer.from(plot.png, 'base64').subarray(1, 4).toString(), 'PNG')
  const latex = "from IPython.display import Latex, display; display(Latex('$x$'))"
  assert.deepEqual((await sandbox.runCode(latex)).results[0].formats(), ['latex'])
  const { error } = await sandbox.runCode("def f():\n    raise LookupError('what')\nf()")
  assert.deepEqual([error.name, error.value, error.traceback.includes('line 2')], ['LookupError', 'what', true])
  await assert.rejects(sandbox.runCode('import time; time.sleep(300)', { timeoutMs: 1000 }), TimeoutError)
  assert.equal((await sandbox.runCode('x')).text, '20')
}

async function contexts(sandbox) {
  assert.equal((await sandbox.runCode('const y: number = 5; y * 2', { language: 'ts' })).text, '10')
  const context = await sandbox.createCodeContext({ language: 'python', cwd: '/home/user/inside' })
  assert.equal((await sandbox.runCode('import os; os.path.basename(os.getcwd())', { context })).text, 'inside')
  assert.equal((await sandbox.listCodeContexts()).at(-1).id, context.id)
  assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
  await sandbox.runCode('z = 1', { context })
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('z', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
  await assert.rejects(sandbox.runCode('1', { context }), /not found/)
}

async function files(sandbox) {
  const written = await sandbox.files.write('made here/ä.txt', 'grüße')
  assert.equal(written.path, '/home/user/made here/ä.txt')
  assert.equal((await sandbox.runCode("open('made here/ä.txt').read()")).text, 'grüße')
  const bytes = Uint8Array.from({ length: 300_000 }, (_, number) => number % 256)
  await sandbox.files.write([{ path: '/tmp/bytes', data: new Blob([bytes]) }, { path: 'two', data: '2' }])
  assert.deepEqual(await sandbox.files.read('/tmp/bytes', { format: 'bytes' }), bytes)
  let streamed = 0
  for await (const piece of await sandbox.files.read('/tmp/bytes', { format: 'stream' })) streamed += piece.length
  assert.equal(streamed, bytes.length)
  assert.ok(await sandbox.files.makeDir('a/b'))
  assert.ok(!(await sandbox.files.makeDir('a/b')))
  await sandbox.files.rename('two', 'a/b/three')
  assert.equal((await sandbox.files.getInfo('a/b/three')).size, 1)
  assert.deepEqual((await sandbox.files.list('a', { depth: 2 })).map((entry) => entry.name), ['b', 'three'])
  const signed = await sandbox.downloadUrl('a/b/three', { useSignatureExpiration: 600 })
  assert.equal(signed.split('?')[0].endsWith('/files'), true)
  await sandbox.files.remove('a')
  assert.ok(!(await sandbox.files.exists('a')))
  await assert.rejects(sandbox.files.read('absent'), FileNotFoundError)
}

async function watches(sandbox) {
  await sandbox.files.makeDir('watched/below')
  const events = []
  const wanted = [
    [FilesystemEventType.CREATE, 'below/made by a kernel'],
    [FilesystemEventType.WRITE, 'below/made by a kernel'],
  ]
  const all = event()
  const ended = event()
  const onEvent = (told) => {
    events.push([told.type, told.name])
    if (events.length === wanted.length) all.happens()
  }
  const handle = await sandbox.files.watchDir('watched', onEvent, { recursive: true, onExit: ended.happens })
  await sandbox.runCode("open('watched/below/made by a kernel', 'w').write('x')")
  await all.happened
  assert.deepEqual(events, wanted)
  await handle.stop()
  await ended.happened
}

async function commands(sandbox) {
  const done = await sandbox.commands.run("cat 'made here/ä.txt'; echo $WHO $B >&2", { envs: { B: 'b' } })
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['grüße', 'me b\n', 0])
  await assert.rejects(sandbox.commands.run('exit 3'), (failed) => failed instanceof CommandExitError && failed.exitCode === 3)
  const cat = await sandbox.commands.run('cat; echo done', { background: true, stdin: true })
  assert.deepEqual((await sandbox.commands.list()).map((each) => each.pid), [cat.pid])
  await sandbox.commands.sendStdin(cat.pid, 'grüße\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'grüße\ndone\n')
  const sleeping = await sandbox.commands.run('sleep 300', { background: true })
  await sleeping.disconnect()
  const found = await sandbox.commands.connect(sleeping.pid)
  assert.ok(await sandbox.commands.kill(sleeping.pid))
  await assert.rejects(found.wait(), CommandExitError)
  assert.ok(!(await sandbox.commands.kill(sleeping.pid)))
}

async function terminal(sandbox) {
  let shown = ''
  const first = event()
  const decoder = new TextDecoder()
  const onData = (data) => {
    shown += decoder.decode(data, { stream: true })
    if (shown.includes('20 50')) first.happens()
  }
  const handle = await sandbox.pty.create({ cols: 50, rows: 20, onData })
  const type = (text) => sandbox.pty.sendInput(handle.pid, new TextEncoder().encode(text))
  await type('stty size\n')
  await first.happened
  await sandbox.pty.resize(handle.pid, { cols: 51, rows: 21 })
  await type('stty size; exit\n')
  assert.equal((await handle.wait()).exitCode, 0)
  assert.ok(shown.includes('21 51'), shown)
}

const STEPS = { control, code, contexts, files, watches, commands, terminal }

const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { 'a b': 'ä&=' }, envs: { WHO: 'me' }, ...options })
try {
  for (const [name, step] of Object.entries(STEPS)) {
    await step(sandbox).catch((cause) => {
      throw new Error(`in ${name}`, { cause })
    })
  }
  const killed = sandbox.runCode("print('begun', flush=True)\nimport time; time.sleep(300)", {
    onStdout: () => sandbox.kill(),
  })
  await assert.rejects(killed, /killed/)
} finally {
  await sandbox.kill()
}
assert.ok(!(await Sandbox.kill(sandbox.sandboxId, options)))
assert.ok(!(await sandbox.isRunning()))
await assert.rejects(sandbox.runCode('1'), /was not found/)
console.log(sandbox.sandboxId)
process.exit() // the SDK leaves a timer of a minute
