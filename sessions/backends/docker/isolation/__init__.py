"""The isolation of kernels by network, firewall and egress proxy, and the proof that it works on this engine.

Words: the *walls* are everything that is set up outside a container to isolate it. A wall is *proven* by an attempt to
pass it, whatever the configuration says. This room knows no running kernel.
"""
