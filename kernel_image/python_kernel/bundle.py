"""The modules that a kernel starts with, in one file.

A start imports some 600 modules, and for each the import system asks the file system a dozen questions. In gVisor every
one of them goes to another process; that was half of a kernel's start. When the image is built, `write` puts the code
of a kernel's modules into a file; `use` lets a kernel take them from there, until it has started (`release`). What is
not in it is imported as ever. Each module keeps its path, loader and source: tracebacks, `inspect` and
`importlib.resources` see no difference.

    python bundle.py FILE       starts a kernel as far as it goes without a client, and writes what it has imported
"""

import marshal
import sys

# Of what is in the interpreter itself: `importlib.machinery` and `pathlib` would be read from files, at every start.
from _frozen_importlib_external import (
    ExtensionFileLoader,
    SourceFileLoader,
    spec_from_file_location,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType

#: beside this file; made when the image is built
FILE = __file__.removesuffix("bundle.py") + "modules"
#: bytes of the length of the index, which is what the file begins with
LENGTH = 8


class Loader(SourceFileLoader):
    """Loads a module whose code is there already."""

    def __init__(self, name: str, path: str, code: memoryview) -> None:
        """Take a module's name, its source's path, and its marshalled code."""
        super().__init__(name, path)
        self._code: memoryview | None = code

    def get_code(self, fullname: str) -> "CodeType | None":
        """What the import system asks for; who asks once more gets it from the module's own file."""
        marshalled, self._code = self._code, None
        if marshalled is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(marshalled)  # noqa: S302 - the image's own
        return code


class Finder:
    """Finds what is in the file, before anything else is asked."""

    def __init__(self, index: dict[str, tuple[str, int, int]], codes: memoryview) -> None:
        """Take the file's content: path and place by name; an extension has no place."""
        self._index = index
        self._codes = codes

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """What the import system asks for."""
        if fullname not in self._index:
            return None
        path, start, end = self._index[fullname]
        loader = Loader(fullname, path, self._codes[start:end]) if end else ExtensionFileLoader(fullname, path)
        spec: ModuleSpec | None = spec_from_file_location(fullname, path, loader=loader)
        return spec


def use() -> None:
    """Import from the file from now on, if there is one for this interpreter."""
    try:
        with open(FILE, "rb") as file:
            content = file.read()
    except FileNotFoundError:  # a kernel beside its gateway, which has no image
        return
    start = LENGTH + int.from_bytes(content[:LENGTH], "big")
    version, index = marshal.loads(content[LENGTH:start])  # noqa: S302 - the image's own
    if version == sys.version:
        sys.meta_path.insert(0, Finder(index, memoryview(content)[start:]))


def release() -> None:
    """Do so no more, and hold nothing of the file in memory."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]


def write(path: str) -> None:
    """Write what is imported by now.

    Args:
        path: where to.
    """
    index: dict[str, tuple[str, int, int]] = {}
    codes = bytearray()
    for name, module in sorted(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is None or spec.name != name or not spec.has_location:
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
