"""An engine without a network: objects in a dictionary, and a runtime that records what it is asked."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any, Callable

import httpx

from agent_sandbox import Engine, _transport

SANDBOXES = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes"
PODS = "/api/v1/namespaces/default/pods"

Handler = Callable[[httpx.Request], httpx.Response]


class FakeEngine:
    """Give it to `Sandbox.create(engine=fake.engine)`."""

    def __init__(self) -> None:
        self.engine = Engine(
            api="https://api.test", router="http://router.test", token="api-token", router_token="rt"
        )
        self.requests: list[httpx.Request] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: dict[str, queue.SimpleQueue[dict[str, Any] | None]] = {
            SANDBOXES: queue.SimpleQueue(),
            PODS: queue.SimpleQueue(),
        }
        self.on_post: Callable[[dict[str, Any]], None] = lambda sandbox: self.becomes_ready(sandbox)
        self.runtime: Handler = lambda request: httpx.Response(500, json={"message": "no runtime"})
        self.api_answer: httpx.Response | None = None
        _transport._cache[self.engine] = _transport.Transport(self.engine, httpx.MockTransport(self._answer))

    # === What happens in the engine ===

    def becomes_ready(self, sandbox: dict[str, Any]) -> None:
        self.condition(sandbox, "True", "SandboxReady", "")

    def condition(self, sandbox: dict[str, Any], status: str, reason: str, message: str) -> None:
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        changed = {**sandbox, "status": {"conditions": [condition]}}
        self.objects[sandbox["metadata"]["name"]] = changed
        self.event(SANDBOXES, "MODIFIED", changed)

    def event(self, collection: str, kind: str, found: dict[str, Any]) -> None:
        self.events[collection].put({"type": kind, "object": found})

    def end_watch(self, collection: str) -> None:
        self.events[collection].put(None)

    # === What a test asks ===

    def sent(self, method: str, path: str = "") -> list[httpx.Request]:
        return [r for r in self.requests if r.method == method and r.url.path.startswith(path)]

    def body(self, method: str, path: str = "") -> Any:
        (request,) = self.sent(method, path)
        return json.loads(request.content)

    # === HTTP ===

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(request.stream, httpx.SyncByteStream) or request.method in ("POST", "DELETE"):
            request.read()
        self.requests.append(request)
        if request.url.host == "router.test":
            assert request.headers["Authorization"] == "Bearer rt"
            return self.runtime(request)
        assert request.headers["Authorization"] == "Bearer api-token"
        if self.api_answer is not None:
            return self.api_answer
        path = request.url.path
        if request.url.params.get("watch") == "true":
            return httpx.Response(200, content=self._lines(path))
        if request.method == "POST":
            return self._create(json.loads(request.content))
        name = path.rsplit("/", 1)[-1]
        if path == SANDBOXES:
            return httpx.Response(200, json={"items": list(self.objects.values())})
        if name not in self.objects:
            return httpx.Response(
                404, json={"reason": "NotFound", "message": f'sandboxes "{name}" not found'}
            )
        if request.method == "DELETE":
            del self.objects[name]
            return httpx.Response(200, json={"status": "Success"})
        return httpx.Response(200, json=self.objects[name])

    def _create(self, sandbox: dict[str, Any]) -> httpx.Response:
        name = sandbox["metadata"]["name"]
        if name in self.objects:
            return httpx.Response(
                409, json={"reason": "AlreadyExists", "message": f'sandboxes "{name}" already exists'}
            )
        sandbox["metadata"].update(uid=f"uid-{name}", resourceVersion="5")
        self.objects[name] = sandbox
        self.on_post(sandbox)
        return httpx.Response(201, json=sandbox)

    def _lines(self, collection: str) -> Iterator[bytes]:
        while True:
            try:
                event = self.events[collection].get(timeout=5)
            except queue.Empty:
                return
            if event is None:
                return
            yield json.dumps(event).encode() + b"\n"


def pod(name: str, waiting: dict[str, str], owner: str | None = None) -> dict[str, Any]:
    """A Pod whose container waits."""
    return {
        "metadata": {"name": name, "ownerReferences": [{"kind": "Sandbox", "uid": owner or f"uid-{name}"}]},
        "status": {"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]},
    }
