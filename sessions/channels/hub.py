"""The channel clients of a session: clients that send their own messages to its kernel, as Jupyter's front ends do.

Messages that the kernel publishes go to all clients. A reply or a question goes to the client whose request caused it.
All clients share one connection to the kernel: the gateway signs a client's messages anew and forwards them unchanged,
but for the names of the operator's servers of tools in the request of a cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import orjson

from kernel_image.protocol import GATEWAY_REQUESTS, TOOL_CALL
from sessions.cells.execution import Question
from sessions.channels.cells import Code
from sessions.channels.pending import PendingRequests
from sessions.channels.requests import PendingRequest, Rules
from sessions.channels.subscription import Subscription, gateway_message
from sessions.channels.unread import Unread
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model import bounded_json
from sessions.model.errors import ConnectionFailed, InvalidRequest, SessionError
from sessions.model.values import StateChange, StateNotice

#: maximum number of clients per session that have left and may return; the first that left are forgotten first
HELD_MAX = 4
#: seconds that the kernel's output waits for a client that reads nothing
STALL = 2.0
#: what clients are told about the variables, before the reason
_TOLD = {
    StateChange.LOST: "the variables of earlier cells are gone",
    StateChange.ROLLED_BACK: "variables and files are those of a checkpoint",
}


class ChannelHub:
    """All channel clients of one session."""

    def __init__(self, rules: Rules, notice: StateNotice, unread: Unread) -> None:
        """Begin without clients.

        Args:
            rules: for the cells of these clients.
            notice: state of the variables when the session begins.
            unread: counts the messages that wait for the clients.
        """
        self._unread = unread
        self._debugs = rules.debugs
        self._requests = PendingRequests(rules, self.dispatch)
        #: what has become of the variables. None means nothing, or that clients were told.
        self._news: StateNotice | None = None
        self.change(notice)
        self._kernel: Kernel | None = None
        self._subscriptions: list[Subscription] = []
        #: clients that hold up the kernel's output; a check is scheduled for each of them
        self._watched: set[Subscription] = set()

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return sum(subscription.attached for subscription in self._subscriptions)

    @property
    def running(self) -> bool:
        """Whether a cell of these clients runs or waits."""
        return self._requests.cell is not None

    async def quiet(self) -> None:
        """Wait until no cell of these clients runs or waits."""
        await self._requests.quiet()

    # -- clients --------------------------------------------------------------------------------------------

    def subscribe(self, client: str, disconnect: Callable[[], None] = lambda: None) -> Subscription:
        """Begin to deliver messages to a client. A returning client gets the messages that it has missed.

        Args:
            client: id with which the client may return. Empty means that it cannot return.
            disconnect: function that ends the client's connection at once, for a client that reads too slowly.
        """
        subscription = Subscription(client, self._resume_if_relieved, self._unread, disconnect)
        for known in list(self._subscriptions):
            if client and known.client == client:
                subscription.inherit(known)
                self._subscriptions.remove(known)
                self._requests.hand_over(known, subscription)
        self._subscriptions.append(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Handle the end of a client's connection, and keep the client's messages if it can return."""
        if subscription not in self._subscriptions:
            subscription.discard()  # a newer subscription has its messages, or the session has ended
            return
        subscription.detach()
        self._subscriptions.remove(subscription)
        self._subscriptions.append(subscription)  # at the end: clients are kept in the order in which they left
        away = [known for known in self._subscriptions if not known.attached and known.client]
        for known in away[:-HELD_MAX] if subscription.client else [subscription]:
            self._subscriptions.remove(known)
            known.discard()
        self._resume_if_relieved()

    def forward(
        self,
        subscription: Subscription,
        channel: str,
        header: dict[str, Any],
        parts: Sequence[bytes],
        buffers: Sequence[bytes],
    ) -> None:
        """Forward a client's message to the kernel.

        Raises:
            InvalidRequest: when a message with this id was sent before, clients must not send messages of this type,
                code would run on another channel than shell, or the code cannot be read.
            PolicyViolation: when the code policy forbids the code.
            QuotaExceeded: when too much waits for the kernel, or the tenant has too many executions under way.
            ConnectionFailed: when there is no kernel, or the kernel accepts no messages.
            LedgerUnavailable: when the message starts the kernel's debugger, and that cannot be recorded.
        """
        if self._kernel is None:
            raise ConnectionFailed
        if channel == "stdin":
            self._answer(subscription, parts, buffers)
            return
        if header["msg_type"] in GATEWAY_REQUESTS:  # an import would run code that nobody counts or records
            raise InvalidRequest("only the gateway sends such a message", field="msg_type")
        size = sum(map(len, parts)) + sum(map(len, buffers))
        in_subshell = header.get("subshell_id") is not None
        code: Code | None = None
        if header["msg_type"] == "execute_request":
            if channel != "shell":  # Python's kernels would also run code on control, uncounted
                raise InvalidRequest("code runs on the shell channel only", field="channel")
            code = Code.of(parts[3])
        elif header["msg_type"] == "debug_request" and _starts_debugger(parts[3]):
            self._debugs(self._kernel)
        request = PendingRequest(subscription, header["msg_id"], header["msg_type"], size, in_subshell, code)
        self._requests.add(request)
        if request.cell is not None:
            parts = request.cell.with_servers(parts)
        try:
            self._kernel.connection.forward(channel, parts, buffers)
        except ConnectionFailed:
            self._requests.not_sent(request)
            raise
        if code is not None and self._news is not None:
            self._report(request, self._news)

    def _report(self, request: PendingRequest, news: StateNotice) -> None:
        """Show in a cell's output what has become of the variables. Front ends have no other place to show it."""
        self._news = None
        text = f"kernel-gateway: {_TOLD[news.change]}: {news.reason}\n"
        self._publish(gateway_message("iopub", "stream", {"name": "stderr", "text": text}, request.header))

    def _answer(self, subscription: Subscription, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Forward an answer to `input()` if the kernel has asked. Other answers would stay in the gateway's memory."""
        request = self._requests.with_open_input(subscription)
        if request is not None and self._kernel is not None:
            request.count_answer()
            self._kernel.connection.forward("stdin", parts, buffers)

    def question(self, msg_id: str) -> Question | None:
        """Return what a request's code asks its client now. None means that it asks nothing."""
        request = self._requests.find(msg_id)
        return None if request is None else request.question

    def answer(self, msg_id: str, number: int, text: str) -> bool:
        """Answer a question in place of the client that was asked, whose own answer then goes nowhere.

        Returns:
            True if the request's code waited for the answer to this question.
        """
        request = self._requests.find(msg_id)
        if self._kernel is None or request is None or request.question is None or request.question.number != number:
            return False
        content = {"status": "ok", "value": text}
        self._kernel.connection.send("stdin", "input_reply", content, parent=request.asked_by)
        request.count_answer()
        return True

    def interrupt(self) -> bool:
        """Interrupt the running cell of these clients.

        Returns:
            True if a cell runs.
        """
        return self._requests.interrupt()

    # -- the kernel -----------------------------------------------------------------------------------------

    def connect(self, kernel: Kernel, cause: SessionError) -> None:
        """Send later messages to a kernel, in place of the previous one.

        Args:
            kernel: the new kernel.
            cause: why the previous kernel ends: the error of the cells that it runs.
        """
        self._kernel = kernel
        self._requests.connect(kernel, cause)

    def change(self, notice: StateNotice) -> None:
        """Tell clients in their next cell that the variables are lost, or those of a checkpoint.

        A restart is not told: front ends show the restart that their user has asked for.
        """
        self._news = notice if notice.change in _TOLD else None

    def detach(self) -> None:
        """Forget the kernel, because it sleeps. The clients stay, and `connect` gives them the kernel again."""
        self._kernel = None

    def disconnect(self, cause: SessionError) -> None:
        """Forget the kernel, because it has ended, and fail its cells. Their error or the next cell shows the loss."""
        self._kernel = None
        if self.running:
            self._news = None
        self._requests.disconnect(cause)

    def dispatch(self, message: Message) -> None:
        """Deliver a message of the kernel to the clients that it concerns."""
        request = self._requests.find(message.parent_id)
        if message.channel == "iopub":
            self._requests.published(message)
            if message.type != TOOL_CALL:  # it is for the gateway
                self._publish(message)
        elif request is not None and message.channel == "stdin":
            request.count_question(message)
            request.client.enqueue(message)
        elif request is not None:
            self._requests.replied(request, message)
            request.client.enqueue(message)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Tell all clients that the kernel is replaced because a client has asked for it.

        The state is "starting" and not "restarting", which front ends take for a crash.
        """
        self.announce("starting")
        try:
            yield
        finally:
            self.announce("idle")

    def announce(self, state: str) -> None:
        """Send all clients a state that the kernel itself cannot report."""
        self._publish(gateway_message("iopub", "status", {"execution_state": state}))

    def _publish(self, message: Message) -> None:
        for subscription in self._subscriptions:
            subscription.enqueue(message)
            if subscription.holds_up_kernel and self._kernel is not None:
                self._kernel.connection.pause()
                if subscription not in self._watched:
                    self._watch(subscription)

    def _watch(self, subscription: Subscription) -> None:
        self._watched.add(subscription)
        asyncio.get_running_loop().call_later(STALL, self._check_reader, subscription, subscription.taken)

    def _check_reader(self, subscription: Subscription, taken: int) -> None:
        """Stop waiting for a client that has read nothing for a while."""
        self._watched.discard(subscription)
        if subscription.holds_up_kernel and subscription.taken == taken:
            subscription.let_kernel_continue()
        elif subscription.holds_up_kernel:
            self._watch(subscription)
        self._resume_if_relieved()

    def _resume_if_relieved(self) -> None:
        if self._kernel is not None and not any(known.holds_up_kernel for known in self._subscriptions):
            self._kernel.connection.resume()

    def release_cells(self) -> None:
        """Let the clients' cells go on without this gateway."""
        self._requests.release()

    def close(self, cause: SessionError) -> None:
        """Tell all clients that the kernel is dead, and release them, because the session has ended."""
        self.disconnect(cause)
        self.announce("dead")
        self.release_clients()

    def release_clients(self) -> None:
        """Release all clients. The session itself may continue in another gateway."""
        for subscription in self._subscriptions:
            subscription.close() if subscription.attached else subscription.discard()
        self._subscriptions.clear()
        self._unread.close()


def _starts_debugger(content: bytes) -> bool:
    """Return whether a debug request may start the kernel's debugger.

    Source: the Debug Adapter Protocol, `initialize`. Front ends ask each kernel for `debugInfo`, which starts nothing.
    A kernel may read what is no valid JSON here.
    """
    with suppress(orjson.JSONDecodeError):
        match bounded_json.loads(content):
            case {"command": str(command)}:
                return command == "initialize"
    return True
