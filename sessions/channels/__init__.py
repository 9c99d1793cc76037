"""Channel clients: raw Jupyter clients that send their own messages to a kernel."""
