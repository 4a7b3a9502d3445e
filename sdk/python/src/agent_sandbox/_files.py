"""Files inside a sandbox."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

import httpx

from ._errors import FileAccessDenied, FileError, FileNotFound

if TYPE_CHECKING:
    from ._sandbox import Sandbox

_CHUNK = 256 * 1024


@dataclass(frozen=True)
class FileEntry:
    """One line of a directory listing."""

    name: str
    size: int
    is_directory: bool
    modified: datetime


class Files:
    """Files of one sandbox. Paths are relative to its base directory, also those that begin with a slash."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def write(self, path: str, data: bytes | str | IO[bytes]) -> None:
        """Writes a whole file, and the directories above it. Text is written as UTF-8, a file object is streamed.

        Readers see the old content or the new, never a part.
        """
        boundary = secrets.token_hex(16)
        response = self._sandbox._call(
            "POST",
            "/upload",
            content=_multipart(boundary, path, data),
            headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
            read_timeout=None,
        )
        _check(response, path)

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        response = self._sandbox._call("GET", _url("/download/", path), read_timeout=None)
        _check(response, path)
        return response.content

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The whole content of a file, as text."""
        return self.read(path).decode(encoding)

    def list(self, path: str = ".") -> builtins.list[FileEntry]:
        """What is in a directory, sorted by name."""
        response = self._sandbox._call("GET", _url("/list/", path))
        _check(response, path)
        entries = [
            FileEntry(
                name=entry["name"],
                size=entry["size"],
                is_directory=entry["type"] == "directory",
                modified=datetime.fromtimestamp(entry["mod_time"], timezone.utc),
            )
            for entry in response.json()
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory at `path`."""
        response = self._sandbox._call("GET", _url("/exists/", path))
        _check(response, path)
        return bool(response.json()["exists"])


def _check(response: httpx.Response, path: str) -> None:
    if response.status_code < 400:
        return
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the sandbox answered with status {response.status_code}"
    if response.status_code == 404:
        raise FileNotFound(path, message)
    if response.status_code == 403:
        raise FileAccessDenied(path, message)
    raise FileError(path, message)


def _url(prefix: str, path: str) -> str:
    """`path` as one segment, so that no HTTP library on the way can tidy it up."""
    segment = quote(path, safe="")
    if segment in (".", ".."):
        segment = segment.replace(".", "%2E")
    return prefix + segment


def _multipart(boundary: str, path: str, data: bytes | str | IO[bytes]) -> Iterator[bytes]:
    if "\r" in path or "\n" in path or "\0" in path:
        raise ValueError(f"a path cannot contain a line break or a NUL: {path!r}")
    name = path.replace("\\", "\\\\").replace('"', '\\"')
    disposition = f'Content-Disposition: form-data; name="file"; filename="{name}"'
    head = f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n"
    return _chunks(head.encode(), data, f"\r\n--{boundary}--\r\n".encode())


def _chunks(head: bytes, data: bytes | str | IO[bytes], tail: bytes) -> Iterator[bytes]:
    yield head
    if isinstance(data, str):
        yield data.encode()
    elif isinstance(data, (bytes, bytearray, memoryview)):
        yield bytes(data)
    else:
        while True:
            chunk = data.read(_CHUNK)
            if not chunk:
                break
            yield chunk
    yield tail
