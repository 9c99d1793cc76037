"""Tools, files and processes beside a kernel, in its sandbox."""
