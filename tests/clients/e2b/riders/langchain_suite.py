"""LangChain's own tests of sandboxes, with its E2B backend. pytest runs this file in an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestSandbox(SandboxIntegrationTests):  # type: ignore[misc]
    """The suite."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[E2BSandbox]:
        """A sandbox of all tests."""
        sandbox = Sandbox.create(timeout=1800)
        yield E2BSandbox(sandbox=sandbox, workdir="/home/user")
        sandbox.kill()
