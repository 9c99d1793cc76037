"""What runs a program where a provider has only an interpreter; it imports nothing of ours."""
