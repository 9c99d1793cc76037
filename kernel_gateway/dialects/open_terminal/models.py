"""Queries and bodies of the requests. Those of the model's tools are also the schemas of `/openapi.json`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

#: maximum patterns of a search, replacements of a file, and paths of an archive
MANY = 100
Kind = Literal["file", "directory", "any"]
Patterns = Annotated[list[str], Field(max_length=MANY)]


class Query(BaseModel):
    """Parameters of a query, which are texts. Unknown ones are ignored, as in the original."""

    model_config = ConfigDict(extra="ignore")
    #: names of the parameters that may be there several times
    LISTS: ClassVar[frozenset[str]] = frozenset()


class Body(BaseModel):
    """A body. Unknown fields are ignored, as in the original."""

    model_config = ConfigDict(extra="ignore", strict=True)


class OnePath(Query):
    """A file."""

    path: str = Field(description="path of the file, absolute or relative to the working directory")


class ListQuery(Query):
    """A directory to list."""

    directory: str = Field(".", description="directory to list")


class ReadQuery(OnePath):
    """Lines of a file to read."""

    start_line: int | None = Field(None, ge=1, description="number of the first line, from 1")
    end_line: int | None = Field(None, ge=1, description="number of the last line, which is returned, too")


class GrepQuery(Query):
    """A search for text in files."""

    LISTS = frozenset({"include"})

    query: str = Field(description="text, or regular expression of Python")
    path: str = Field(".", description="directory or file to search")
    regex: bool = Field(default=True, description="false: the query is plain text")
    case_insensitive: bool = Field(default=False, description="true: upper and lower case are the same")
    include: Patterns | None = Field(None, description="patterns of file names such as `*.py`; a file must fit one")
    match_per_line: bool = Field(default=True, description="false: return only the names of the files")
    max_results: int = Field(50, ge=1, le=500, description="maximum number of matches")


class GlobQuery(Query):
    """A search for names."""

    LISTS = frozenset({"exclude"})

    pattern: str = Field(description="pattern of names or relative paths, such as `*.py`")
    path: str = Field(".", description="directory to search")
    exclude: Patterns | None = Field(None, description="patterns of entries to leave out")
    type: Kind | None = Field("any", description="`file`, `directory` or `any`")
    max_results: int = Field(50, ge=1, le=500, description="maximum number of matches")


class NamesQuery(Query):
    """A ranked search for names."""

    query: str = Field("", description="part of the name")
    path: str = Field(".", description="directory to search")
    limit: int = Field(20, ge=1, le=100, description="maximum number of results")
    type: Kind | None = Field("any", description="`file`, `directory` or `any`")
    show_hidden: bool = Field(default=False, description="true: also hidden entries")


class MatchesQuery(Query):
    """A ranked search for names and content."""

    query: str = Field(description="text to search")
    path: str = Field(".", description="directory to search")
    show_hidden: bool = Field(default=False, description="true: also hidden entries")
    offset: int = Field(0, ge=0, le=10_000, description="number of results to leave out")
    limit: int = Field(100, ge=1, le=100, description="maximum number of results")


class TailQuery(Query):
    """How long to wait for a command, and how much of its output to return."""

    wait: float | None = Field(None, ge=0, le=300, description="seconds to wait for the command's end")
    tail: int | None = Field(None, ge=1, description="return only so many of the last pieces of output")


class StatusQuery(TailQuery):
    """The output to return."""

    offset: int = Field(0, ge=0, description="number of pieces to leave out: `next_offset` of the answer before")


class KillQuery(Query):
    """How to end a command."""

    force: bool = Field(default=False, description="true: SIGKILL instead of SIGTERM")


class ViewQuery(OnePath):
    """A file to show. `preview` is ignored: office documents are sent as they are."""


class UploadQuery(Query):
    """Where an upload goes."""

    directory: str


class Path(Body):
    """A directory or a notebook."""

    path: str


class Move(Body):
    """An entry to move."""

    source: str
    destination: str


class Archive(Body):
    """Entries to pack."""

    paths: Annotated[list[str], Field(max_length=MANY)]


class ExecRequest(Body):
    """A command to run."""

    command: str = Field(description="shell command")
    cwd: str | None = Field(None, description="directory to run in; default: the working directory")
    env: dict[str, str] | None = Field(None, description="further environment variables")


class InputRequest(Body):
    """Input for a command."""

    input: str = Field(description="text for the command's input, with its newlines")


class WriteRequest(Body):
    """A file to write."""

    path: str = Field(description="path of the file; missing directories are made")
    content: str = Field(description="the whole text of the file")


class ReplacementChunk(Body):
    """A text to replace."""

    target: str = Field(description="the exact text to find")
    replacement: str = Field(description="the text in its place")
    start_line: int | None = Field(None, ge=1, description="search only from this line on, counted from 1")
    end_line: int | None = Field(None, ge=1, description="search only up to this line")
    allow_multiple: bool = Field(default=False, description="true: replace every occurrence; false: refuse several")


class ReplaceRequest(Body):
    """Texts of a file to replace."""

    path: str = Field(description="path of the file")
    replacements: Annotated[list[ReplacementChunk], Field(max_length=MANY)] = Field(
        description="replacements, made one after the other"
    )


class Cell(Body):
    """A cell of a notebook to run."""

    cell_index: int
    source: str | None = None


class Resize(Body):
    """Another size of a terminal."""

    type: Literal["resize"]
    cols: int = Field(80, gt=0, le=65535)
    rows: int = Field(24, gt=0, le=65535)


class Auth(Body):
    """The first message on a terminal's WebSocket."""

    type: Literal["auth"]
    token: str
    chat_id: Any = None
