"""RAGFlow's provider contract over everything that can run a program: our kernels, hosted services, this machine.

To add a provider: a module with a class of the contract in `base.py`, its line in `PROVIDERS`, and a module in
`tests/sessions/providers/` that puts it under the contract suite; a test fails until that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sessions.oneshot import Runner
from sessions.providers.aliyun_codeinterpreter import AliyunCodeInterpreter
from sessions.providers.base import SandboxProvider
from sessions.providers.e2b import E2B
from sessions.providers.local import Local
from sessions.providers.self_managed import SelfManaged

#: makes a provider that is not initialised; what it is given runs programs in this gateway
Factory = Callable[[Runner], SandboxProvider]

#: the providers there are, by their ids
PROVIDERS: Mapping[str, Factory] = {
    SelfManaged.id: SelfManaged,
    AliyunCodeInterpreter.id: lambda _: AliyunCodeInterpreter(),
    E2B.id: lambda _: E2B(),
    Local.id: lambda _: Local(),
}


def makers(runner: Runner) -> dict[str, Callable[[], SandboxProvider]]:
    """What makes each of them where programs of this gateway run with `runner`."""
    return {name: partial(make, runner) for name, make in PROVIDERS.items()}
