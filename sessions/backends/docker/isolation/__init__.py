"""What keeps kernels in: network, firewall, egress proxy; and the proof that all of it works on this engine.

Words: the *walls* are all that is set up outside a container; *proven* is what was tried, not what is configured.
Knows no kernel that runs.
"""
