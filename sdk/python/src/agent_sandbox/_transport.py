"""HTTP to the engine: its API for objects, its router for what is inside a sandbox.

The only module that knows about status codes. Nothing is ever sent twice.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Union

import httpx

from . import _engine
from ._engine import Engine
from ._errors import (
    AuthenticationError,
    EngineError,
    EngineNotFound,
    SandboxExists,
    SandboxNotFound,
    SandboxNotReady,
    SandboxUnreachable,
)

RUNTIME_PORT = 8888
_CONNECT = 10.0
_DEFAULT = 60.0

Content = Union[bytes, Iterator[bytes]]


class Transport:
    """Two HTTP clients, one for each address of the engine. `http` replaces the network in tests."""

    def __init__(self, engine: Engine, http: httpx.BaseTransport | None = None) -> None:
        verify: bool | ssl.SSLContext = True
        if engine.ca:
            verify = ssl.create_default_context(cadata=engine.ca)
        timeout = httpx.Timeout(_DEFAULT, connect=_CONNECT)
        # No cap on connections: every watch holds one, and a program may create many sandboxes at once.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self.engine = engine
        # trust_env off: a proxy of the environment must neither see local tokens nor stand in the way.
        self._api = httpx.Client(
            base_url=engine.api,
            headers=_bearer(engine.token),
            verify=verify,
            timeout=timeout,
            limits=limits,
            trust_env=False,
            transport=http,
        )
        self._router = httpx.Client(
            base_url=engine.router,
            headers=_bearer(engine.router_token),
            timeout=timeout,
            limits=limits,
            trust_env=False,
            transport=http,
        )

    # === The API ===

    def answers(self) -> bool:
        """Whether the engine is there. TLS proves that it is ours, so any answer is good enough."""
        try:
            self._api.get("/readyz", timeout=5.0)
        except httpx.TransportError:
            return False
        return True

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call of the Kubernetes API."""
        try:
            response = self._api.request(method, path, json=body)
        except httpx.TransportError as error:
            raise EngineError(f"the engine at {self.engine.api} does not answer: {error}") from error
        _check_api(response)
        content: dict[str, Any] = response.json()
        return content

    def watch(self, path: str, params: Mapping[str, str]) -> Watch:
        """The changes of a collection, as they happen."""
        return Watch(self._api, path, {**params, "watch": "true"})

    # === The router ===

    def call(
        self,
        namespace: str,
        name: str,
        method: str,
        path: str,
        *,
        content: Content | None = None,
        json: Any | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = _DEFAULT,
    ) -> httpx.Response:
        """One call of the runtime inside a sandbox. Its own errors are left to the caller."""
        routing = {
            "X-Sandbox-ID": name,
            "X-Sandbox-Namespace": namespace,
            "X-Sandbox-Port": str(RUNTIME_PORT),
        }
        try:
            response = self._router.request(
                method,
                path,
                content=content,
                json=json,
                headers={**(headers or {}), **routing},
                timeout=httpx.Timeout(_DEFAULT, connect=_CONNECT, read=read_timeout),
            )
        except httpx.ReadTimeout as error:
            raise SandboxUnreachable(f"sandbox {name!r} did not answer in time") from error
        except httpx.TransportError as error:
            raise EngineError(f"the router at {self.engine.router} does not answer: {error}") from error
        _check_router(response, name)
        return response


class Watch:
    """A stream of events that another thread may stop."""

    def __init__(self, client: httpx.Client, path: str, params: Mapping[str, str]) -> None:
        self._client = client
        self._path = path
        self._params = params
        self._lock = threading.Lock()
        self._stopped = False
        self._response: httpx.Response | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        timeout = httpx.Timeout(None, connect=_CONNECT)
        with self._client.stream("GET", self._path, params=dict(self._params), timeout=timeout) as response:
            with self._lock:
                if self._stopped:
                    return
                self._response = response
            if response.status_code >= 400:
                response.read()
            _check_api(response)
            for line in response.iter_lines():
                if line:
                    yield json.loads(line)

    def stop(self) -> None:
        """Ends the iteration, also one that is waiting for the next event."""
        with self._lock:
            self._stopped = True
            stream = self._response.extensions.get("network_stream") if self._response else None
        raw = stream.get_extra_info("socket") if stream is not None else None
        if raw is not None:
            try:
                # Not the method of an SSL socket: that one also takes the cipher away from the reading thread.
                socket.socket.shutdown(raw, socket.SHUT_RDWR)
            except OSError:
                pass  # closed already


_cache: dict[Engine, Transport] = {}
_cache_lock = threading.Lock()


def connect(engine: Engine | None = None) -> Transport:
    """A transport to `engine`, or to the local one, which is started when it does not answer."""
    if engine is not None:
        return _cached(engine)
    directory = _engine.data_directory()
    found = Engine.read(directory)
    if found is not None and _cached(found).answers():
        return _cached(found)
    _engine.start()
    started = Engine.read(directory)
    if started is None or not _cached(started).answers():
        raise EngineNotFound(f"an engine was started, but none that writes to {directory} answers")
    return _cached(started)


def _cached(engine: Engine) -> Transport:
    with _cache_lock:
        if engine not in _cache:
            _cache[engine] = Transport(engine)
        return _cache[engine]


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _check_api(response: httpx.Response) -> None:
    status = response.status_code
    if status < 400:
        return
    message = _field(response, "message") or f"the engine answered with status {status}"
    if status == 401:
        raise AuthenticationError(f"the engine does not accept our token: {message}", status)
    if status == 404:
        raise SandboxNotFound(message)
    if status == 409 and _field(response, "reason") == "AlreadyExists":
        raise SandboxExists(message, status)
    raise EngineError(message, status)


def _check_router(response: httpx.Response, name: str) -> None:
    """Raises what the router itself says. It says `detail`; the runtime inside says `message` or lists problems."""
    detail = _field(response, "detail") if response.status_code >= 400 else None
    if detail is None:
        return
    if response.status_code == 401:
        raise AuthenticationError(f"the router does not accept our token: {detail}", 401)
    if response.status_code == 404 and detail.startswith("Sandbox "):
        raise SandboxNotFound(detail)
    if response.status_code == 503:
        raise SandboxNotReady(detail)
    if response.status_code in (502, 504):
        raise SandboxUnreachable(detail)
    raise EngineError(f"sandbox {name!r}: {detail}", response.status_code)


def _field(response: httpx.Response, name: str) -> str | None:
    try:
        value = response.json()[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
