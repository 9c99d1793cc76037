// For `test_e2b_suites.py`: the suites' own settings also start browsers and build templates.
import { defineConfig } from 'vitest/config'

export default defineConfig({ test: { testTimeout: 100_000, hookTimeout: 100_000, maxWorkers: 2 } })
