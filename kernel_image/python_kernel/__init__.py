"""The Python kernel: ipykernel with the changes that a service needs. Each module gives the reason of its changes."""
