"""Programs of the kernels' image. They run in the sandbox beside user code, and import nothing from the gateway."""
