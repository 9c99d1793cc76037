// The sandbox of Mastra's workspaces for E2B, as npm installs it. Without a template's name it would build one.
import assert from 'node:assert/strict'

import { E2BSandbox } from '@mastra/e2b'

const options = { id: 'rider', template: 'base', timeout: 300_000, env: { WHO: 'me' } }
const sandbox = new E2BSandbox(options)
await sandbox.start()
try {
  assert.ok(await sandbox.isReady())
  const ran = await sandbox.executeCommand('echo', ['$WHO and more'])
  assert.deepEqual([ran.success, ran.exitCode, ran.stdout], [true, 0, '$WHO and more\n'])
  assert.equal((await sandbox.executeCommand('echo $WHO')).stdout, 'me\n')
  const failed = await sandbox.executeCommand('echo no >&2; exit 3')
  assert.deepEqual([failed.success, failed.exitCode], [false, 3])
  assert.match(failed.stderr, /^no\n/) // the client adds what a failed command has printed a second time
  await sandbox.writeFiles([
    { path: '/home/user/a.txt', content: 'one' },
    { path: '/home/user/sub/b.txt', content: 'two' },
  ])
  assert.equal((await sandbox.executeCommand('cat a.txt sub/b.txt', [], { cwd: '/home/user' })).stdout, 'onetwo')

  const reads = await sandbox.processes.spawn('read line; echo "got $line"')
  assert.ok((await sandbox.processes.list()).some((each) => each.pid === reads.pid))
  await reads.sendStdin('this\n')
  assert.equal((await reads.wait()).stdout, 'got this\n')
  const sleeps = await sandbox.processes.spawn('sleep 600')
  assert.ok(await sandbox.processes.kill(sleeps.pid))

  const { sandboxId } = sandbox.e2b
  // A stop pauses the sandbox; a new object of the same id finds it, with its files.
  await sandbox.stop()
  const again = new E2BSandbox(options)
  await again.start()
  assert.equal(again.e2b.sandboxId, sandboxId)
  assert.equal((await again.executeCommand('cat /home/user/a.txt')).stdout, 'one')
  await again.destroy()
} catch (error) {
  await sandbox.destroy()
  throw error
}
