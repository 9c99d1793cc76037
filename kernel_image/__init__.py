"""Programs of the kernels' image. They run beside user code in the sandbox and import nothing of the gateway."""
