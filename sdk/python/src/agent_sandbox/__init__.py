"""Run commands and move files in isolated sandboxes.

>>> from agent_sandbox import Sandbox
>>> with Sandbox.create() as sandbox:
...     print(sandbox.run("echo hi").stdout)
"""

from ._engine import Engine
from ._errors import (
    AuthenticationError,
    CommandError,
    EngineError,
    EngineNotFound,
    FileAccessDenied,
    FileError,
    FileNotFound,
    SandboxError,
    SandboxExists,
    SandboxFailed,
    SandboxNotFound,
    SandboxNotReady,
    SandboxUnreachable,
)
from ._files import FileEntry, Files
from ._sandbox import CommandResult, Sandbox

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CommandError",
    "CommandResult",
    "Engine",
    "EngineError",
    "EngineNotFound",
    "FileAccessDenied",
    "FileEntry",
    "FileError",
    "FileNotFound",
    "Files",
    "Sandbox",
    "SandboxError",
    "SandboxExists",
    "SandboxFailed",
    "SandboxNotFound",
    "SandboxNotReady",
    "SandboxUnreachable",
    "__version__",
]
