"""Sandboxes: create, find, run commands in, delete."""

from __future__ import annotations

import builtins
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from typing_extensions import Self

from . import _transport
from ._engine import Engine
from ._errors import CommandError, EngineError, SandboxError, SandboxNotFound
from ._files import Files
from ._ready import wait_ready
from ._transport import Transport

_GROUP_VERSION = "agents.x-k8s.io/v1beta1"
_LABELS = {"agents.x-k8s.io/created-by": "python-client"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Beyond a command's own limit: what an answer may need to arrive.
_GRACE = 30.0


@dataclass(frozen=True)
class CommandResult:
    """What a command did."""

    stdout: str
    stderr: str
    exit_code: int
    """Minus the signal's number when a signal ended it; 124 when its time was over."""
    timed_out: bool = False


class Sandbox:
    """One sandbox. Get one from `create`, `get` or `list`.

    A `with` block around a created sandbox deletes it in the end; one that was found stays.
    """

    def __init__(self, transport: Transport, found: dict[str, Any], *, owned: bool = False) -> None:
        metadata = found["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.uid: str = metadata["uid"]
        self.files = Files(self)
        self._transport = transport
        self._owned = owned

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        image: str = "host",
        env: Mapping[str, str] | None = None,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        timeout: float = 60,
        engine: Engine | None = None,
    ) -> Sandbox:
        """Creates a sandbox and returns when it is Ready. When that fails, nothing is left behind.

        `engine` is the local one unless given; it is started when it does not run.
        """
        return cls._create(_transport.connect(engine), name, image, env, namespace, labels, timeout)

    @classmethod
    def get(cls, name: str, *, namespace: str = "default", engine: Engine | None = None) -> Sandbox:
        """The sandbox of that name."""
        transport = _transport.connect(engine)
        return cls(transport, transport.api("GET", f"{_collection(namespace)}/{name}"))

    @classmethod
    def list(cls, *, namespace: str = "default", engine: Engine | None = None) -> builtins.list[Sandbox]:
        """All sandboxes of a namespace, Ready or not."""
        transport = _transport.connect(engine)
        found = transport.api("GET", _collection(namespace))
        return [cls(transport, item) for item in found.get("items") or []]

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command to its end: a string in a shell, a list as it is.

        `timeout` is in seconds; the whole process group is killed after it. A command that fails is a result; with
        `check` it is a `CommandError`.
        """
        line = _command_line(command, env or {}, cwd)
        request: dict[str, Any] = {"command": line}
        if timeout is not None:
            if timeout <= 0:
                raise ValueError(f"timeout must be above 0, not {timeout!r}")
            request["timeout_seconds"] = timeout
        response = self._call(
            "POST", "/execute", json=request, read_timeout=None if timeout is None else timeout + _GRACE
        )
        if response.status_code != 200:
            raise SandboxError(f"sandbox {self.name!r} refused the command: {response.text}")
        answer = response.json()
        result = CommandResult(
            stdout=answer["stdout"],
            stderr=answer["stderr"],
            exit_code=answer["exit_code"],
            timed_out=answer.get("timed_out", False),
        )
        if check and result.exit_code != 0:
            raise CommandError(command if isinstance(command, str) else shlex.join(command), result)
        return result

    def delete(self) -> None:
        """Deletes the sandbox and everything in it. One that is gone already is fine."""
        self._owned = False
        _delete(self._transport, self.namespace, self.name, self.uid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owned:
            self.delete()

    def __repr__(self) -> str:
        return f"<Sandbox {self.namespace}/{self.name}>"

    @classmethod
    def _create(
        cls,
        transport: Transport,
        name: str | None,
        image: str,
        env: Mapping[str, str] | None,
        namespace: str,
        labels: Mapping[str, str] | None,
        timeout: float,
    ) -> Sandbox:
        chosen = name or f"sandbox-{secrets.token_hex(4)}"
        manifest = _manifest(chosen, image, env or {}, namespace, labels or {})
        try:
            created = transport.api("POST", _collection(namespace), manifest)
        except BaseException as error:
            # Without an answer it may exist. A name that we made up is ours to clean; one that was given may be another's.
            if name is None and getattr(error, "status", None) is None:
                _discard(transport, namespace, chosen)
            raise
        sandbox = cls(transport, created, owned=True)
        try:
            wait_ready(transport, created, timeout)
        except BaseException:
            _discard(transport, namespace, sandbox.name, sandbox.uid)
            raise
        return sandbox

    def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self._transport.call(self.namespace, self.name, method, path, **request)


def _collection(namespace: str) -> str:
    return f"/apis/{_GROUP_VERSION}/namespaces/{namespace}/sandboxes"


def _delete(transport: Transport, namespace: str, name: str, uid: str | None) -> None:
    options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    try:
        transport.api("DELETE", f"{_collection(namespace)}/{name}", options)
    except SandboxNotFound:
        pass
    except EngineError as error:
        # Another sandbox has the name by now; ours is gone.
        if error.status != 409:
            raise


def _discard(transport: Transport, namespace: str, name: str, uid: str | None = None) -> None:
    """Deletes on the way out of a failure. That failure is what the caller should hear of, not this one."""
    try:
        _delete(transport, namespace, name, uid)
    except SandboxError:
        pass


def _manifest(
    name: str, image: str, env: Mapping[str, str], namespace: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image}
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    return {
        "apiVersion": _GROUP_VERSION,
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": namespace, "labels": {**labels, **_LABELS}},
        "spec": {"podTemplate": {"spec": {"containers": [container]}}},
    }


def _command_line(command: str | Sequence[str], env: Mapping[str, str], cwd: str | None) -> str:
    """The line the runtime gets. It splits words like a shell and does nothing else a shell does."""
    if not command:
        raise ValueError("the command is empty")
    before = "" if cwd is None else f"cd -- {shlex.quote(cwd)} || exit\n"
    for key, value in env.items():
        if not _VARIABLE.match(key):
            raise ValueError(f"{key!r} is not the name of an environment variable")
        before += f"export {key}={shlex.quote(value)}\n"
    if isinstance(command, str):
        return shlex.join(["sh", "-c", before + command])
    if before:
        return shlex.join(["sh", "-c", before + 'exec "$@"', "sh", *command])
    return shlex.join(command)
