"""RAGFlow's provider contract for every place that can run a program: our kernels, hosted services, this machine.

To add a provider, write a module with a class that fulfils the contract in `base.py`, a line in `PROVIDERS`, and a
module in `tests/sessions/providers/` that runs the contract suite on the class. A test fails until that module exists.

This room knows no dialect. It is the only room of the domain that may import an HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sessions.programs.program import Runner
from sessions.providers.aliyun_codeinterpreter import AliyunCodeInterpreter
from sessions.providers.base import SandboxProvider
from sessions.providers.e2b import E2B
from sessions.providers.local import Local
from sessions.providers.self_managed import SelfManaged

#: makes a provider that is not initialised; its argument runs programs in this gateway
Factory = Callable[[Runner], SandboxProvider]

#: all providers by id
PROVIDERS: Mapping[str, Factory] = {
    SelfManaged.id: SelfManaged,
    AliyunCodeInterpreter.id: lambda _: AliyunCodeInterpreter(),
    E2B.id: lambda _: E2B(),
    Local.id: lambda _: Local(),
}


def makers(runner: Runner) -> dict[str, Callable[[], SandboxProvider]]:
    """Return, for each provider's id, the function that makes the provider. `runner` runs programs in this gateway."""
    return {name: partial(make, runner) for name, make in PROVIDERS.items()}
