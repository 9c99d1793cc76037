"""Bundles of compiled modules, which make imports faster: one for a kernel's start, one for imports ahead of need.

A start imports about 600 modules, and for each module the import system makes a dozen calls to the file system. In
gVisor each call goes to another process; that was half of a kernel's start. So, when the image is built, `write` puts
the code of these modules into one file. `use` lets a kernel import them from that file, until `release`. Other modules
are imported as usual. Each module keeps its path, loader and source, so tracebacks, `inspect` and
`importlib.resources` work as usual.

    python bundle.py FILE [AHEAD]       starts a kernel as far as possible without a client, and writes the imported
                                        modules to FILE, and the modules of the kernelspec's `preload` to AHEAD
"""

import marshal
import sys

# This module is built into the interpreter; `importlib.machinery` and `pathlib` would be read from files at each start.
from _frozen_importlib_external import (
    ExtensionFileLoader,
    SourceFileLoader,
    spec_from_file_location,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from importlib.machinery import ModuleSpec
    from mmap import mmap
    from types import CodeType
    from typing import BinaryIO

#: paths of the two bundles, beside this module; the build of the image makes them
FILE = __file__.removesuffix("bundle.py") + "modules"
AHEAD = __file__.removesuffix("bundle.py") + "ahead"
#: size of the number at the beginning of the file, which is the length of the index
LENGTH = 8


class Loader(SourceFileLoader):
    """Loads a module from the bundle."""

    def __init__(self, name: str, path: str, code: memoryview) -> None:
        """Set the module's name, the path of its source, and its marshalled code."""
        super().__init__(name, path)
        self._code: memoryview | None = code

    def get_code(self, fullname: str) -> "CodeType | None":
        """Return the code from the bundle. A second call reads the code from the module's own file."""
        marshalled, self._code = self._code, None
        if marshalled is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(marshalled)  # noqa: S302 - the image's own
        return code


class Finder:
    """Finds the modules of the bundle, before all other finders."""

    def __init__(self, index: dict[str, tuple[str, int, int]], codes: memoryview) -> None:
        """Set the content of the bundle.

        Args:
            index: path of each module, and start and end of its code, by name. The end is 0 for an extension.
            codes: the marshalled code of all modules.
        """
        self._index = index
        self._codes = codes

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """Return the spec of a module, or None if the bundle does not have it."""
        if fullname not in self._index:
            return None
        path, start, end = self._index[fullname]
        loader = Loader(fullname, path, self._codes[start:end]) if end else ExtensionFileLoader(fullname, path)
        spec: ModuleSpec | None = spec_from_file_location(fullname, path, loader=loader)
        return spec


def use(path: str) -> None:
    """Import modules from a bundle from now on, if there is one for this interpreter.

    Args:
        path: path of the bundle.
    """
    try:
        with open(path, "rb") as file:
            content = file.read() if path == FILE else _mapped(file)
    except FileNotFoundError:  # there is no bundle outside of the image, as with the process backend
        return
    start = LENGTH + int.from_bytes(content[:LENGTH], "big")
    version, index = marshal.loads(content[LENGTH:start])  # noqa: S302 - the image's own
    if version == sys.version:
        sys.meta_path.insert(0, Finder(index, memoryview(content)[start:]))


def _mapped(file: "BinaryIO") -> "mmap":
    """Map a large file into memory. Only its used parts are read, and processes share the memory."""
    import mmap  # noqa: PLC0415 - an extension that a start does not need

    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release() -> None:
    """Stop importing from the bundle, and free its memory."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]


def write(path: str, without: "Collection[str]" = ()) -> None:
    """Write a bundle with all modules that have been imported so far.

    Args:
        path: path of the bundle.
        without: names of modules to leave out.
    """
    index: dict[str, tuple[str, int, int]] = {}
    codes = bytearray()
    for name, module in sorted(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is None or spec.name != name or not spec.has_location or name in without:
            continue
        if type(spec.loader) is SourceFileLoader:
            begin = len(codes)
            codes += marshal.dumps(spec.loader.get_code(name))
            index[name] = (spec.origin, begin, len(codes))
        elif type(spec.loader) is ExtensionFileLoader:
            index[name] = (spec.origin, 0, 0)
    head = marshal.dumps((sys.version, index))
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(LENGTH, "big") + head + codes)


if __name__ == "__main__":
    sys.path[0] = sys.path[0].removesuffix("/python_kernel")
    from python_kernel import imports

    imports.lean()
    from python_kernel.app import KernelApp, config

    KernelApp.instance(config=config()).initialize([])
    write(sys.argv[1])
    if sys.argv[2:]:
        import json
        from pathlib import Path

        known = set(sys.modules)
        spec = json.loads((Path(__file__).parents[1] / "kernelspecs/python/kernel.json").read_text())
        for module in spec["metadata"]["kernel_gateway"]["preload"]:
            imports.ahead(module)
        write(sys.argv[2], without=known)
