"""The cluster of `make test-cluster`, which cluster.sh starts and ends."""

from pathlib import Path

#: where cluster.sh keeps its files, unless CLUSTER_CACHE names another folder
CACHE = Path.home() / ".cache" / "kernel-gateway-cluster"
#: credentials of an administrator of the cluster that is up
KUBECONFIG = str(CACHE / "run" / "keys" / "admin.kubeconfig")
#: address from which the tests connect, as a network of one address
CONTROL = "10.77.0.254/32"


def is_up() -> bool:
    """Return whether the cluster is up, and this process is beside its control plane."""
    return Path(KUBECONFIG).exists() and CONTROL.partition("/")[0] in Path("/proc/self/net/fib_trie").read_text()
