"""The isolation of kernels by network, firewall and egress proxy, and the proof that it works on this engine.

Words: isolation is *proven* by attempts to break it, whatever the configuration says. This room knows no running
kernel.
"""
