"""Finds the local engine, or starts one."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._errors import EngineError, EngineNotFound

_START_TIMEOUT = 60.0


@dataclass(frozen=True)
class Engine:
    """How to reach an engine. Secrets are kept out of its `repr`."""

    api: str
    router: str
    ca: str | None = None
    """The certificate authority of `api`, as PEM. None trusts what the system trusts."""
    token: str | None = field(default=None, repr=False)
    """Bearer token for the API."""
    router_token: str | None = field(default=None, repr=False)
    """Bearer token for the router."""

    @classmethod
    def read(cls, directory: Path) -> Engine | None:
        """What the engine of this data directory wrote down; None when there is nothing (complete)."""
        try:
            about = _json(directory / "engine.json")
            kubeconfig = _json(directory / "kubeconfig")
            router_token = (directory / "router.token").read_text().strip()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise EngineNotFound(
                f"the engine's files in {directory} are not readable for this user\n"
                "hint: use the user that runs the engine, or set ASB_DATA_DIR to a directory of your own"
            ) from error
        try:
            authority = kubeconfig["clusters"][0]["cluster"].get("certificate-authority-data")
            return cls(
                api=about["api"],
                router=about["router"],
                ca=base64.b64decode(authority).decode() if authority else None,
                token=kubeconfig["users"][0]["user"]["token"],
                router_token=router_token or None,
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EngineError(f"the engine's files in {directory} are not understood ({error!r})") from error


def data_directory() -> Path:
    """Where the engine of this user keeps its files."""
    configured = os.environ.get("ASB_DATA_DIR")
    if configured:
        return Path(configured)
    if os.geteuid() == 0:
        return Path("/var/lib/asb")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "asb"


def start() -> None:
    """Starts the engine in the background; returns when it is ready."""
    program = _program()
    try:
        done = subprocess.run(
            [program, "up", "--detach"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT,
        )
    except OSError as error:
        raise EngineNotFound(f"cannot run {program}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"`{program} up --detach` was not ready within {_START_TIMEOUT:g} seconds"
        ) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise EngineError(f"`{program} up --detach` failed with exit code {done.returncode}: {said}")


def _program() -> str:
    configured = os.environ.get("ASB_BIN")
    if configured:
        return configured
    found = shutil.which("asb")
    if found is None:
        raise EngineNotFound(
            "no engine is running and `asb` is not on the PATH\n"
            "hint: install asb, or set ASB_BIN to the program, or start one with `asb up`"
        )
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise EngineError(f"{path} is not a JSON object")
    return content
