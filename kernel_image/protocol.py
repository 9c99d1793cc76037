"""Words that the gateway and the programs in its sandboxes share. Imports nothing.

The gateway reads them from here, and so do the tools. JavaScript and kernelspecs repeat some of them; a test compares.
"""

#: MIME type of the display in which a whole program's outcome arrives
RUN_MIME = "application/vnd.kernel-gateway.run+json"
#: type of the message that a kernel publishes behind its output when it sends `idle` too early
FLUSHED = "flushed"
#: type of the message of a kernel's prelude that says that its output has left
SETTLED = "settled"
#: type of the request on the control channel that gives a warm kernel its session's environment and directory
LEASE_REQUEST = "lease_request"
#: type of the request on shell that lets a warm kernel import a module ahead of need
PRELOAD_REQUEST = "preload_request"
#: field of an `execute_request` for what the gateway asks of a cell besides running the code
EXTRAS = "gateway_extras"
#: MIME types that displays have only if a cell's request asks for them: the chart of a figure, the data of a table
CHART_MIME = "application/vnd.kernel-gateway.chart+json"
DATA_MIME = "application/vnd.kernel-gateway.data+json"
#: asked for like a MIME type: images are displayed, too, when Pillow saves them under a name
SAVED_IMAGES = "application/vnd.kernel-gateway.saved-images"
#: requests that only the gateway may send
GATEWAY_REQUESTS = frozenset({LEASE_REQUEST, PRELOAD_REQUEST})

#: the tools beside a kernel, by the names of their modules
FILES_TOOL = "files"
PROCESSES_TOOL = "processes"
ATTACHED_TOOL = "attached"
WATCHING_TOOL = "watching"
#: the directory for files besides the workspace
TEMPORARY = "/tmp"  # noqa: S108
#: form of the length before each piece of an upload of unknown size; an empty piece ends the upload. Source: `struct`
FRAME_FORMAT = ">I"
#: field of a listing that says that entries were left out
TRUNCATED = "truncated"
#: entries that a watched directory may have, with those below it if these are watched, too
TREE_MAX = 10_000
#: variable in the environment of all processes that the processes tool starts
MARK = "KERNEL_GATEWAY_PROCESS"
#: variable with the policy for a sandbox's network, and the policy that allows none
NETWORK = "KERNEL_NETWORK"
NO_NETWORK = "none"
#: variables that keep caches, settings and histories of tools out of the home directory, which is the workspace, and
#: their places in the kernel's private directory. So no file of the session has a part in a kernel's start, either.
PRIVATE_PLACES = {
    "HISTFILE": ".bash_history",
    "IPYTHONDIR": ".ipython",
    "JUPYTER_CONFIG_DIR": ".jupyter",
    "JUPYTER_DATA_DIR": ".local/share/jupyter",
    "NPM_CONFIG_CACHE": ".npm",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_STATE_HOME": ".local/state",
}
#: variables that a container gives to its kernel and to all commands
SANDBOX_VARIABLES = (
    NETWORK,
    *PRIVATE_PLACES,
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_RETRIES",
    "PYTHONUSERBASE",
)
