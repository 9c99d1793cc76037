"""`/files/grep`, `glob`, `search` and `matches`: the searches, which run in the sandbox."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kernel_gateway.dialects.open_terminal.files import FileHandler
from kernel_gateway.dialects.open_terminal.models import GlobQuery, GrepQuery, MatchesQuery, NamesQuery
from sessions.guest import searching
from sessions.guest.searching import Findings
from sessions.model.errors import InvalidRequest
from sessions.sandbox.sandbox import Sandbox


class SearchHandler(FileHandler):
    """A search."""

    async def find(self, path: str, work: Any) -> tuple[str, Findings]:
        """Search below a path. `work` makes the search of a sandbox and an absolute path."""
        sandbox = await self.sandbox()
        target = self.absolute(sandbox, path)
        search: Coroutine[Any, Any, Findings] = work(sandbox, target)
        return target, await search


class GrepHandler(SearchHandler):
    """`/files/grep`."""

    async def get(self) -> None:
        """Return the lines that contain a text."""
        await self.run_until_client_leaves(self._search(self.query(GrepQuery)))

    async def _search(self, query: GrepQuery) -> None:
        def work(sandbox: Sandbox, target: str) -> Coroutine[Any, Any, Findings]:
            return searching.grep(
                sandbox,
                target,
                query.query,
                regex=query.regex,
                ignore_case=query.case_insensitive,
                include=query.include or [],
                per_line=query.match_per_line,
                limit=query.max_results,
            )

        target, found = await self.find(query.path, work)
        for match in found.matches:
            match["file"] = joined(target, match["file"])
        answer = {"query": query.query, "path": target, "matches": found.matches, "truncated": found.truncated}
        self.finish_json(answer)


class GlobHandler(SearchHandler):
    """`/files/glob`."""

    async def get(self) -> None:
        """Return the entries whose name fits a pattern."""
        await self.run_until_client_leaves(self._search(self.query(GlobQuery)))

    async def _search(self, query: GlobQuery) -> None:
        def work(sandbox: Sandbox, target: str) -> Coroutine[Any, Any, Findings]:
            exclude, kind, limit = query.exclude or [], query.type or "any", query.max_results
            return searching.glob(sandbox, target, query.pattern, exclude=exclude, kind=kind, limit=limit)

        target, found = await self.find(query.path, work)
        answer = {"pattern": query.pattern, "path": target, "matches": found.matches, "truncated": found.truncated}
        self.finish_json(answer)


class NamesHandler(SearchHandler):
    """`/files/search`."""

    async def get(self) -> None:
        """Return the entries whose name contains a text."""
        await self.run_until_client_leaves(self._search(self.query(NamesQuery)))

    async def _search(self, query: NamesQuery) -> None:
        def work(sandbox: Sandbox, target: str) -> Coroutine[Any, Any, Findings]:
            kind, hidden = query.type or "any", query.show_hidden
            return searching.find_names(sandbox, target, query.query, kind=kind, hidden=hidden, limit=query.limit)

        target, found = await self.find(query.path, work)
        self.finish_json({"results": [named(target, match) for match in found.matches]})


class MatchesHandler(SearchHandler):
    """`/files/matches`."""

    async def get(self) -> None:
        """Return the entries whose name, path or content contains a text."""
        query = self.query(MatchesQuery)
        if not query.query.strip():
            raise InvalidRequest("Query must not be blank", field="query")
        await self.run_until_client_leaves(self._search(query))

    async def _search(self, query: MatchesQuery) -> None:
        def work(sandbox: Sandbox, target: str) -> Coroutine[Any, Any, Findings]:
            return searching.find_matches(
                sandbox, target, query.query, hidden=query.show_hidden, offset=query.offset, limit=query.limit
            )

        target, found = await self.find(query.path, work)
        results = []
        for match in found.matches:
            further = {"relative_path": match["path"], "content_matches": match.pop("lines")}
            results.append(named(target, match) | further)
        self.finish_json({"results": results, "offset": query.offset, "has_more": found.truncated})


def joined(directory: str, path: str) -> str:
    """Return the whole path of a finding. An empty path is that of the searched file itself."""
    return f"{directory.rstrip('/')}/{path}" if path else directory


def named(directory: str, match: dict[str, Any]) -> dict[str, Any]:
    """Return a finding with its whole path and its name."""
    path = joined(directory, match["path"])
    return match | {"path": path, "name": path.rpartition("/")[2]}
