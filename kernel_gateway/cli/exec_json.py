"""`kernel-gateway exec-json`: run one program for a process of another language: JSON in, JSON out.

Source: the bridge of RAGFlow's design. The command uses the same provider settings as the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, model_validator

from kernel_gateway.cli.flags import add_location, client_from
from kernel_gateway.client_config import Client
from kernel_gateway.errors import InternalError
from kernel_gateway.http.request_body import Body, validated
from kernel_gateway.observe import logs
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, SessionError
from sessions.programs.program import Artifact, Outcome, Program
from sessions.providers import makers
from sessions.providers.executor import Executor
from sessions.providers.manager import ProviderManager, Rules
from sessions.providers.store import ProviderStore

#: bytes of an artifact up to which the answer contains it; a larger one is written to a file
INLINE_MAX = 1024**2
#: number of further attempts after a failed connection to the gateway
RETRIES = 1
#: tenant of a program that does not run in the gateway; the gateway knows the tenant by the key
TENANT = "local"
#: timeout in seconds of a program that names none
TIMEOUT = 30.0

EPILOG = """\
input: {"code": TEXT or "code_b64": BASE64, "language": "python", "timeout": SECONDS, "arguments": {...},
  "provider": ID in place of the active one, "artifacts_dir": DIRECTORY}; only code is needed.
output: {"stdout", "stderr", "exit_code", "returned": {"present", "value"}, "artifacts": [{"name", "mime_type", "size",
  "content_b64", "path"}], "status": ok, error, timeout, out_of_memory, died or null, "error": {"code", "name",
  "message", "resolution"} or null, "provider"}. Artifacts above 1 MiB come as files in artifacts_dir ("path"); without
  it neither "content_b64" nor "path" is set. Logs go to standard error.
exit code: 0 when the program ran, whatever its result (see "exit_code" and "status"); 2 when the input is not valid;
  1 when the program was not run, or its outcome is unknown. "error" is set with 1 and 2."""


class Request(Body):
    """The object that the command reads."""

    code: str | None = None
    code_b64: str | None = None
    language: str = "python"
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    arguments: dict[str, Any] | None = None
    provider: str | None = None
    artifacts_dir: str | None = None

    @model_validator(mode="after")
    def _one_code(self) -> Request:
        if (self.code is None) == (self.code_b64 is None):
            raise ValueError("give either code or code_b64")
        return self

    def program(self) -> Program:
        """Return the request as a program of the domain.

        Raises:
            InvalidRequest: when `code_b64` is no base64 of UTF-8, or the directory for artifacts does not exist.
        """
        if self.artifacts_dir is not None and not Path(self.artifacts_dir).is_dir():
            raise InvalidRequest("artifacts_dir is no directory", field="artifacts_dir")
        try:
            code = self.code if self.code_b64 is None else b64decode(self.code_b64, validate=True).decode()
        except ValueError:
            raise InvalidRequest("code_b64 must be base64 of UTF-8", field="code_b64") from None
        return Program(code or "", self.language, self.arguments or {}, self.timeout or TIMEOUT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_location(parser)
    parser.add_argument(
        "--url",
        help="the gateway to use when its own kernels are the active provider (default: http://127.0.0.1:8888) "
        "[KERNEL_GATEWAY_URL]",
    )
    parser.add_argument(
        "--key", help="a tenant's key for it (default: the one in the state directory) [KERNEL_GATEWAY_KEY]"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run one program.

    Returns:
        0 when the program ran, 1 when it did not run or its outcome is unknown, 2 when the input is not valid.
    """
    logs.set_up()
    with os.fdopen(_standard_output(), "wb") as out:
        told, code = _failed(InternalError()), 1
        try:
            told, code = answer(client_from(arguments), sys.stdin.buffer.read())
        finally:
            out.write(orjson.dumps(told) + b"\n")
    return code


def _standard_output() -> int:
    """Return a descriptor of standard output for the answer alone; redirect all other output to standard error."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def answer(client: Client, text: bytes) -> tuple[dict[str, Any], int]:
    """Return the object to write, and the exit code.

    Args:
        client: settings with the gateway's URL and state directory.
        text: the input.
    """
    try:
        request = validated(Request, exact_json.loads(text))
        program = request.program()
    except orjson.JSONDecodeError as error:
        return _failed(InvalidRequest(f"the input is no valid JSON: {error.msg}")), 2
    except InvalidRequest as error:
        return _failed(error), 2
    try:
        outcome, provider = asyncio.run(_run(client, request.provider, program))
        return _answer_of(outcome, provider, request.artifacts_dir), 0
    except SessionError as error:
        return _failed(error), 2 if isinstance(error, InvalidRequest) else 1


async def _run(client: Client, only: str | None, program: Program) -> tuple[Outcome, str]:
    store = ProviderStore(client.state_dir.expanduser(), client.secrets_key_file)
    gateway = Executor(client.url, client.credential(), RETRIES)
    manager = ProviderManager(store, makers(gateway), Rules(only=only), own=gateway)
    try:
        return await manager.run(TENANT, program), manager.get_provider_name()
    finally:
        await manager.close()
        await gateway.close()
        store.close()


def _answer_of(outcome: Outcome, provider: str, directory: str | None) -> dict[str, Any]:
    returned = outcome.returned
    return {
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "exit_code": outcome.exit_code,
        "returned": {"present": returned is not None, "value": _json(returned.value if returned else None)},
        "artifacts": _exported_artifacts(outcome.artifacts, directory),
        "status": outcome.ending.value,
        "error": _error(outcome.error) if outcome.error else None,
        "provider": provider,
    }


def _json(value: Any) -> orjson.Fragment:
    """Encode a value that may contain large integers, which orjson refuses."""
    return orjson.Fragment(json.dumps(value))


def _failed(error: SessionError) -> dict[str, Any]:
    empty = {"stdout": "", "stderr": "", "exit_code": None, "returned": {"present": False, "value": None}}
    return empty | {"artifacts": [], "status": None, "error": _error(error), "provider": None}


def _error(error: SessionError) -> dict[str, Any]:
    told = error.as_dict()
    return {name: told[name] for name in ("code", "name", "message", "resolution")}


def _exported_artifacts(artifacts: tuple[Artifact, ...], directory: str | None) -> list[dict[str, Any]]:
    """Return the artifacts: small ones with their content, large ones as files in a new directory of `directory`."""
    large = [artifact for artifact in artifacts if len(artifact.content) > INLINE_MAX]
    place = Path(tempfile.mkdtemp(prefix="artifacts-", dir=directory)).resolve() if directory and large else None
    told = []
    for number, artifact in enumerate(artifacts):
        path, content = None, None
        if artifact not in large:
            content = b64encode(artifact.content).decode()
        elif place is not None:
            # The program chose the name, so the name must not decide where this machine puts the file.
            ending = re.search(r"\.[A-Za-z0-9]{1,8}$", artifact.name)
            path = place / f"{number}{ending[0] if ending else ''}"
            path.write_bytes(artifact.content)
        told.append(
            {
                "name": artifact.name,
                "mime_type": artifact.mime_type,
                "size": len(artifact.content),
                "content_b64": content,
                "path": None if path is None else str(path),
            }
        )
    return told
