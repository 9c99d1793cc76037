"""Programs in the container of the egress proxy, in addition to squid. Standard library only."""
