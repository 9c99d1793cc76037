"""Every error that a client can get, each with a stable code.

A class's docstring is the text a user sees: what happened, and in a second paragraph what to do. To add an error:
write a subclass with a new code, and add its status to `kernel_gateway/errors.py`. A test fails until both exist.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, ClassVar


class SessionError(Exception):
    """The request failed.

    Try again. If the error persists, tell the operator the time and the error code.
    """

    code: ClassVar[str] = "SB000"

    def __init_subclass__(cls, code: str, **others: Any) -> None:
        """Set the code of an error class.

        Raises:
            TypeError: when another error has this code.
        """
        super().__init_subclass__(**others)
        if code in _KINDS:
            raise TypeError(f"{code} is the code of {_KINDS[code].__name__} and of {cls.__name__}")
        cls.code = code
        _KINDS[code] = cls

    def __init__(self, message: str = "", **details: Any) -> None:
        """Describe one failure. Never pass user code, keys or paths of the host: clients see all of it.

        Args:
            message: text for the user. Empty means the first paragraph of the class's docstring.
            details: further facts, as JSON values.
        """
        self.message = message or self._paragraphs()[0]
        self.details = details
        super().__init__(self.message)

    @classmethod
    def _paragraphs(cls) -> list[str]:
        return [" ".join(part.split()) for part in cleandoc(cls.__doc__ or "").split("\n\n")]

    @property
    def name(self) -> str:
        """Name of the class, which clients may match on."""
        return type(self).__name__

    @property
    def resolution(self) -> str:
        """What the user can do about the error."""
        return self._paragraphs()[1]

    def as_dict(self) -> dict[str, Any]:
        """Return the error as JSON values. Every dialect translates them into its own form."""
        shown = {"code": self.code, "name": self.name, "message": self.message, "resolution": self.resolution}
        return shown | {"details": self.details}


_KINDS: dict[str, type[SessionError]] = {SessionError.code: SessionError}


class NotInitialized(SessionError, code="SB001"):
    """The sandbox this gateway is set to use is not ready.

    Run `kernel-gateway doctor`: it names what is missing and how to fix it.
    """


class InvalidRequest(SessionError, code="SB002"):
    """The request is not valid.

    Correct the field that the message names.
    """


class ConnectionFailed(SessionError, code="SB003"):
    """The kernel runs but cannot be reached.

    Try again. If the error persists, run `kernel-gateway doctor` to check the kernels' network.
    """


class StartFailed(SessionError, code="SB004"):
    """The kernel could not be started.

    Try again. If the error persists, check the host's free memory and disk and run `kernel-gateway doctor`.
    """


class ExecutionTimeout(SessionError, code="SB005"):
    """The code ran longer than its timeout and was interrupted.

    Raise `timeout` up to the gateway's maximum, or do the work in smaller steps.
    """


class OutOfMemory(SessionError, code="SB006"):
    """The kernel used more memory than its limit and was ended; its variables are lost.

    Work on less data at a time, or ask the operator for a higher memory limit.
    """


class PolicyViolation(SessionError, code="SB007"):
    """The code was not run, because this gateway's code policy does not allow it.

    Change the code that `problems` names. The operator chose the policy. It checks only the text, so it may be wrong.
    """


class QuotaExceeded(SessionError, code="SB008"):
    """A limit of your tenant is reached.

    End sessions you no longer need, wait for running cells, then try again.
    """


class BackendUnavailable(SessionError, code="SB009"):
    """The container engine does not answer.

    Try again in a few seconds; running kernels are not affected.
    """


class KernelDied(SessionError, code="SB010"):
    """The kernel has ended; its variables are lost.

    Run the setup cells again, unless the state is `rolled_back`: the next execute starts a fresh kernel.
    """


class SessionNotFound(SessionError, code="SB011"):
    """There is no such session.

    Create it, or execute code without `if_session` and `if_incarnation`: a session is made on first use. Then run the
    setup cells again.
    """


class SessionExists(SessionError, code="SB012"):
    """A session of this name exists already.

    Use it, end it first, or choose another name.
    """


class SessionClosed(SessionError, code="SB013"):
    """The session was ended while the request was in flight.

    Send the request again: it starts a new session.
    """


class FileNotFound(SessionError, code="SB014"):
    """There is no such file in the session's workspace.

    List the workspace to see what is there.
    """


class FileExists(SessionError, code="SB037"):
    """There is something else at this path of the session's workspace.

    Choose another path. A move replaces a file with `overwrite`, but never a directory: delete that first.
    """


class NoSpace(SessionError, code="SB015"):
    """The session's workspace has no room for this.

    Delete files, or ask the operator for a larger disk limit.
    """


class SandboxNotFound(SessionError, code="SB016"):
    """There is no such sandbox.

    Create it first. A sandbox that was idle for too long or reached its lifetime is ended with all its content.
    """


class TemplateNotFound(SessionError, code="SB017"):
    """There is no such template.

    Create it first, or use the default template, which is always there.
    """


class ProcessNotFound(SessionError, code="SB018"):
    """There is no such process in the sandbox.

    List the sandbox's processes to see what runs.
    """


class AuditUnavailable(SessionError, code="SB019"):
    """The code was not run, because the audit record of it cannot be written.

    Tell the operator: the disk that holds the gateway's state directory is full or fails.
    """


class LedgerUnavailable(SessionError, code="SB027"):
    """Nothing was started, because its record cannot be written.

    Tell the operator: the disk that holds the gateway's state directory is full or fails.
    """


class ShuttingDown(SessionError, code="SB028"):
    """The gateway is shutting down and starts nothing new.

    Try again in a few seconds, when it has been restarted.
    """


class OutcomeUnknown(SessionError, code="SB030"):
    """The execution began before the gateway was restarted, and its outcome is unknown. It was not run again.

    Check the session's variables. To run the code anyway, send it with another idempotency key.
    """


class ExecutionNotFound(SessionError, code="SB050"):
    """The session has no such execution.

    List its executions to see which are known: the oldest that have ended are forgotten.
    """


class ExecutionCancelled(SessionError, code="SB051"):
    """The execution was cancelled before its turn, and its code did not run.

    To run the code after all, send it again, with another idempotency key.
    """


class CellRunsOn(SessionError, code="SB048"):
    """The gateway is being restarted, and the code runs on without it. Variables stay, its output up to now is lost.

    Do not send the code again. The session's next cell begins when this one has ended, and reports what happened; the
    later output is in the session's notebook.
    """


class SettingsUnreadable(SessionError, code="SB035"):
    """A provider's settings cannot be read: they are damaged, or their secrets were encrypted with another key.

    Restore the key file at `secrets_key_file`, or save the provider's settings again, with their secrets.
    """


class NetworkNotAllowed(SessionError, code="SB039"):
    """This session may not have the network `allowlist`.

    Create it without `network`, or ask the operator to add hosts to `egress_allow` and you to `egress_tenants`.
    """


class CheckpointNotFound(SessionError, code="SB040"):
    """The session has no such checkpoint.

    List its checkpoints to see which there are: a new one replaces the oldest when there are too many.
    """


class CheckpointRefused(SessionError, code="SB041"):
    """The checkpoint could not be taken or used; the session is as it was.

    The message names the cause. Close files without a name and connections of the code, then try again.
    """


class PortNotOpen(SessionError, code="SB060"):
    """Nothing listens on this port of the sandbox.

    Start the server first. It must listen on `0.0.0.0`, `127.0.0.1` or `::1`, with this port.
    """


class PortsUnavailable(SessionError, code="SB061"):
    """Servers in this sandbox cannot be reached.

    The message names the cause, which the gateway's operator can mend.
    """


class VariableNotFound(SessionError, code="SB066"):
    """The session has no such variable.

    List the variables, or run the cell that sets it.
    """


class DebuggerUnavailable(SessionError, code="SB070"):
    """Cells of this session cannot be debugged.

    Debug cells of Python. In other languages, print what you want to see.
    """


class DebugRefused(SessionError, code="SB071"):
    """The debugger cannot do this now.

    The message names the cause. Ask for the debugger's state, which says what the debugged cell does.
    """


def of_code(code: object, message: str = "", /, **details: Any) -> SessionError | None:
    """Return the error with a code that another service or an earlier gateway has reported, or None.

    Args:
        code: code of the error. None is returned if no error has this code.
        message: text for the user; see `SessionError`.
        details: further facts, as JSON values.
    """
    kind = _KINDS.get(code) if isinstance(code, str) else None
    return kind(message, **details) if kind else None
