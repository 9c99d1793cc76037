"""One kernel: its channels, its life, and the kernels that wait to be leased."""
