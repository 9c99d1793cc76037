"""The error tree. Every failure that a caller can meet is one of these errors, with a stable code.

::

    SessionError
    ├── NotInitialized        SB001  the configured sandbox is not ready
    ├── InvalidRequest        SB002  a request cannot be accepted
    ├── ConnectionFailed      SB003  a kernel runs but cannot be reached
    ├── StartFailed           SB004  a kernel could not be started
    ├── ExecutionTimeout      SB005  a cell ran past its deadline
    ├── OutOfMemory           SB006  a kernel outgrew its memory
    ├── PolicyViolation       SB007  the operator's code policy does not allow it
    ├── QuotaExceeded         SB008  a tenant's limit is reached
    ├── BackendUnavailable    SB009  the engine does not answer
    ├── KernelDied            SB010  a kernel ended on its own
    ├── SessionNotFound       SB011
    ├── SessionExists         SB012
    ├── SessionClosed         SB013  a session ended while it was in use
    ├── FileNotFound          SB014
    ├── NoSpace               SB015  the workspace is full
    ├── SandboxNotFound       SB016
    ├── TemplateNotFound      SB017
    ├── ProcessNotFound       SB018
    ├── AuditUnavailable      SB019  the audit record of an execution cannot be written
    ├── LedgerUnavailable     SB027  the ledger cannot be written
    ├── ShuttingDown          SB028  the gateway starts nothing new
    ├── SettingsUnreadable    SB035  a provider's settings are damaged, or need another key
    └── OutcomeUnknown        SB030  an execution began before the gateway was restarted

A class's docstring is the text a user sees: its first paragraph says what happened, its second what to do.
To add an error: subclass, give it the next free code, write both paragraphs, and give it a status in
``kernel_gateway/handlers.py``. A test fails until all of this exists.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, ClassVar


class SessionError(Exception):
    """The request failed.

    Try again. If the error persists, tell the operator the time and the error code.
    """

    code: ClassVar[str] = "SB000"

    def __init__(self, message: str = "", **details: Any) -> None:
        """Describe one failure.

        Args:
            message: text that replaces the class's own first paragraph.
            **details: JSON values that help the client to act; never code, keys or host paths.
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
        """Return the error as JSON values, from which every dialect makes its own form."""
        return {
            "code": self.code,
            "name": self.name,
            "message": self.message,
            "resolution": self.resolution,
            "details": self.details,
        }


class NotInitialized(SessionError):
    """The sandbox this gateway is set to use is not ready.

    Run `kernel-gateway doctor`: it names what is missing and how to fix it.
    """

    code = "SB001"


class InvalidRequest(SessionError):
    """The request is not valid.

    Correct the field that the message names.
    """

    code = "SB002"


class ConnectionFailed(SessionError):
    """The kernel runs but cannot be reached.

    Try again. If the error persists, run `kernel-gateway doctor` to check the kernels' network.
    """

    code = "SB003"


class StartFailed(SessionError):
    """The kernel could not be started.

    Try again. If the error persists, check the host's free memory and disk and run `kernel-gateway doctor`.
    """

    code = "SB004"


class ExecutionTimeout(SessionError):
    """The code ran longer than its timeout and was interrupted.

    Raise `timeout` up to the gateway's maximum, or do the work in smaller steps.
    """

    code = "SB005"


class OutOfMemory(SessionError):
    """The kernel used more memory than its limit and was ended; its variables are lost.

    Work on less data at a time, or ask the operator for a higher memory limit.
    """

    code = "SB006"


class PolicyViolation(SessionError):
    """The code was not run, because this gateway's code policy does not allow it.

    Change the code that `problems` names. The operator chose the policy. It checks only the text, so it may be wrong.
    """

    code = "SB007"


class QuotaExceeded(SessionError):
    """A limit of your tenant is reached.

    End sessions you no longer need, wait for running cells, then try again.
    """

    code = "SB008"


class BackendUnavailable(SessionError):
    """The container engine does not answer.

    Try again in a few seconds; running kernels are not affected.
    """

    code = "SB009"


class KernelDied(SessionError):
    """The kernel ended while it was needed; its variables are lost.

    Run the setup cells again: the next execute starts a fresh kernel.
    """

    code = "SB010"


class SessionNotFound(SessionError):
    """There is no such session.

    Create it first, or execute code in it: a session is made on first use.
    """

    code = "SB011"


class SessionExists(SessionError):
    """A session of this name exists already.

    Use it, end it first, or choose another name.
    """

    code = "SB012"


class SessionClosed(SessionError):
    """The session was ended while the request was in flight.

    Send the request again: it starts a new session.
    """

    code = "SB013"


class FileNotFound(SessionError):
    """There is no such file in the session's workspace.

    List the workspace to see what is there.
    """

    code = "SB014"


class NoSpace(SessionError):
    """The session's workspace has no room for this.

    Delete files, or ask the operator for a larger disk limit.
    """

    code = "SB015"


class SandboxNotFound(SessionError):
    """There is no such sandbox.

    Create it first. A sandbox that was idle for too long or reached its lifetime is ended with all its content.
    """

    code = "SB016"


class TemplateNotFound(SessionError):
    """There is no such template.

    Create it first, or use the default template, which is always there.
    """

    code = "SB017"


class ProcessNotFound(SessionError):
    """There is no such process in the sandbox.

    List the sandbox's processes to see what runs.
    """

    code = "SB018"


class AuditUnavailable(SessionError):
    """The code was not run, because the audit record of it cannot be written.

    Tell the operator: the disk that holds the gateway's state directory is full or fails.
    """

    code = "SB019"


class LedgerUnavailable(SessionError):
    """Nothing was started, because its record cannot be written.

    Tell the operator: the disk that holds the gateway's state directory is full or fails.
    """

    code = "SB027"


class ShuttingDown(SessionError):
    """The gateway is shutting down and starts nothing new.

    Try again in a few seconds, when it has been restarted.
    """

    code = "SB028"


class OutcomeUnknown(SessionError):
    """The execution began before the gateway was restarted, and its outcome is unknown. It was not run again.

    Check the session's variables. To run the code anyway, send it with another idempotency key.
    """

    code = "SB030"


class SettingsUnreadable(SessionError):
    """A provider's settings cannot be read: they are damaged, or their secrets were encrypted with another key.

    Restore the key file at `secrets_key_file`, or save the provider's settings again, with their secrets.
    """

    code = "SB035"


def of_code(code: object) -> SessionError | None:
    """Return the error with a code that another service has reported; None: there is no such error."""
    kinds = [SessionError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return next((kind() for kind in kinds if kind.code == code), None)
