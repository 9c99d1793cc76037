"""What is inside the sandbox. Programs that run beside user code; they import nothing of the gateway."""
