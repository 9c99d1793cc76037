"""Lists the languages, their kernels and their installed packages."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field

from kernel_gateway.http.handlers import JsonHandler
from sessions.model.errors import NotInitialized
from sessions.model.kernelspecs import Inventory, KernelSpec


class Language(BaseModel):
    """A language that sessions can use."""

    name: str
    display_name: str
    aliases: list[str] = Field(description="other names of the language in requests")
    kernelspec: str = Field(description="name of its kernel for Jupyter clients")
    version: str = Field(description="version of the interpreter")
    packages: dict[str, str] = Field(description="version of each installed package, by normalized name")

    @classmethod
    def of(cls, spec: KernelSpec, version: str, inventory: Inventory, runtimes: set[str]) -> Self:
        """Describe a language.

        Args:
            spec: kernelspec of the language.
            version: version of its interpreter.
            inventory: installed packages and interpreters.
            runtimes: names of packages that are interpreters of languages; they are not listed as packages.
        """
        packages = {name: version for name, version in inventory.packages.items() if name not in runtimes}
        return cls(
            name=spec.name,
            display_name=spec.display_name,
            aliases=sorted(spec.aliases),
            kernelspec=spec.jupyter_name,
            version=version,
            packages={} if spec.package else packages,
        )


class LanguageList(BaseModel):
    """The languages that are installed."""

    languages: list[Language]


class LanguagesHandler(JsonHandler):
    """`/v1/languages`."""

    def get(self) -> None:
        """List the languages that are installed.

        Raises:
            NotInitialized: when the sandbox is not proven yet; the proof also finds what is installed.
        """
        inventory = self.gateway.inventory()
        if inventory is None:
            raise NotInitialized
        specs = self.gateway.specs.all
        runtimes = {spec.package for spec in specs}
        found = [
            Language.of(spec, version, inventory, runtimes)
            for spec in specs
            if (version := inventory.version(spec)) is not None
        ]
        self.finish_json(LanguageList(languages=found).model_dump(mode="json"))
