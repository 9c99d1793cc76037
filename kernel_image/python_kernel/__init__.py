"""The Python kernel: ipykernel, with what a service needs changed for stated reasons."""
