"""Everything this package raises.

SandboxError
├── EngineNotFound            no engine answers and none could be started
├── EngineError               the engine refused or failed
│   ├── AuthenticationError   it does not accept our token
│   └── SandboxExists         the name is taken
├── SandboxNotFound           no sandbox of that name
├── SandboxNotReady           it is not Ready: suspended, starting, or not in time
│   └── SandboxFailed         it never will be
├── SandboxUnreachable        it is Ready, but nothing answers inside
├── CommandError              a command failed and `check=True` was given
└── FileError                 a file call was refused
    ├── FileNotFound          also a FileNotFoundError
    └── FileAccessDenied      also a PermissionError; the path leaves the base directory

A command that exits with 1 is a result, not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._sandbox import CommandResult


class SandboxError(Exception):
    """The root of everything this package raises."""


class EngineNotFound(SandboxError):
    """No engine answers and none could be started."""


class EngineError(SandboxError):
    """The engine refused a request or failed at it. `status` is the HTTP status, where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AuthenticationError(EngineError):
    """The engine does not accept our token."""


class SandboxExists(EngineError):
    """There is a sandbox of that name already."""


class SandboxNotFound(SandboxError):
    """There is no sandbox of that name."""


class SandboxNotReady(SandboxError):
    """The sandbox is not Ready: suspended, still starting, or it did not become Ready in time."""


class SandboxFailed(SandboxNotReady):
    """The sandbox will not become Ready by waiting. `reason` is the one the engine gave."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class SandboxUnreachable(SandboxError):
    """The sandbox is Ready, but nothing answers inside, or not in time."""


class CommandError(SandboxError):
    """A command failed and `check=True` was given. `result` has its output."""

    def __init__(self, command: str, result: CommandResult) -> None:
        how = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        last = result.stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"command {command!r} {how}", *last]))
        self.command = command
        self.result = result


class FileError(SandboxError):
    """A file call was refused. `path` is the one that was given."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path!r}: {message}")
        self.path = path


class FileNotFound(FileError, FileNotFoundError):
    """There is no such file or directory in the sandbox."""


class FileAccessDenied(FileError, PermissionError):
    """The path leaves the sandbox's base directory."""
