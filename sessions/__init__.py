"""The domain: tenants, sessions, kernels, executions. It knows no HTTP and reads no environment."""
