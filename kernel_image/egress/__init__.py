"""What is inside the container of the egress proxy, beside squid. Standard library only."""
