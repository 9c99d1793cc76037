// For `test_e2b_suites.py`: the suites' own settings also start browsers and build templates.
import { existsSync } from 'node:fs'
import { defineConfig } from 'vitest/config'

// E2B's suite lets its mocks see the SDK's requests with this file; the other suite has no mocks.
const setup = 'tests/globalFetchFallback.setup.ts'

export default defineConfig({
  test: {
    testTimeout: 100_000,
    hookTimeout: 100_000,
    maxWorkers: 2,
    setupFiles: existsSync(setup) ? [setup] : [],
  },
})
