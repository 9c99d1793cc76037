"""Every relative link, anchor and path that the pages name is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.readme import ROOT

FOLDERS = ("docs", "kernel_gateway", "kernel_image", "sessions", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
#: the text of a link or picture, its page and its anchor; not of a URL
LINK = re.compile(r"!?\[[^]]*\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
#: a path in the project
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+|[\w.-]+(?:/[\w.-]+)*/[\w.-]+\.(?:py|sh|js|yml|md))(?:::\w+)?`")


def prose(text: str) -> str:
    """Return a page's text without its examples and diagrams."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors that a forge makes of a page's headings."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere, and the paths that it names and that are not there."""
    places = (ROOT, page.parent)  # a folder's page names its own files
    absent = [path for path in PATH.findall(prose(text)) if not any((place / path).exists() for place in places)]
    for where, anchor in LINK.findall(prose(text)):
        if where and not (page.parent / where).exists():
            absent.append(where)
        elif anchor and anchor not in anchors((page.parent / where).read_text() if where else text):
            absent.append(f"{where}#{anchor}")
    return absent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A page, `with` code\n[a](#a-page-with-code)", []),
        ("# Twice\n# Twice\n[a](#twice-1) [b](#twice-2)", ["#twice-2"]),
        ("[a](absent.md) ![b](docs) [c](https://example.org/absent)", ["absent.md"]),
        ("[a](README.md#two-commands) [b](README.md#three)", ["README.md#three"]),
        ("`docs/absent.md` `docs/api.md`\n```sh\n[a](absent)\n```", ["docs/absent.md"]),
    ],
)
def test_what_leads_nowhere_is_found(text: str, found: list[str]) -> None:
    assert broken(ROOT / "a.md", text) == found


def test_every_page_of_docs_is_in_the_readmes_map() -> None:
    linked = {(ROOT / where).resolve() for where, _ in LINK.findall((ROOT / "README.md").read_text()) if where}
    assert [page for page in (ROOT / "docs").rglob("*.md") if page not in linked] == []


def test_pages_that_error_texts_name_exist() -> None:
    texts = [path for folder in ("kernel_gateway", "sessions") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in texts for name in re.findall(r"(?<![\w/])docs/(?:\w+/)*(?:\w+\.md)?", path.read_text())}
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
