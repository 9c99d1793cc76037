"""The Python kernel: ipykernel with the changes that a service needs, each with its reason."""
