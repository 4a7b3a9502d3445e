"""Waits until a sandbox is Ready, by watching it and its Pod."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import Any

import httpx

from ._errors import EngineError, SandboxFailed, SandboxNotFound, SandboxNotReady
from ._transport import Transport, Watch

Object = dict[str, Any]

# Reasons of the Ready condition that waiting does not heal.
_FINAL = {"PodFailed", "PodSucceeded", "InvalidConfiguration"}
# Reasons of a waiting container that waiting hardly ever heals.
_STUCK = {
    "ErrImagePull",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerError",
    "CreateContainerConfigError",
}


def wait_ready(transport: Transport, sandbox: Object, timeout: float) -> None:
    """Returns when `sandbox` (as the API gave it) is Ready; raises when it cannot become so, or not in time."""
    if is_ready(sandbox):
        return
    metadata = sandbox["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    deadline = time.monotonic() + timeout
    feed = _Feed(transport, name, deadline)
    try:
        collection = f"/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes"
        feed.follow("sandbox", collection, metadata.get("resourceVersion"))
        feed.follow("pod", f"/api/v1/namespaces/{namespace}/pods", None)
        last = sandbox
        while True:
            seen = feed.next()
            if seen is None:
                raise SandboxNotReady(
                    f"sandbox {name!r} was not Ready within {timeout:g} seconds{_state(last)}"
                )
            kind, change, found = seen
            if kind == "pod":
                if _belongs_to(found, uid):
                    check_pod(found)
            elif change == "DELETED" or found["metadata"].get("uid") != uid:
                raise SandboxNotFound(f"sandbox {name!r} was deleted before it was Ready")
            elif is_ready(found):
                return
            else:
                last = found
    finally:
        feed.stop()


def is_ready(sandbox: Object) -> bool:
    """Whether the Ready condition is true. Raises when it never will be."""
    condition = _ready_condition(sandbox)
    if condition is None:
        return False
    if condition.get("status") == "True":
        return True
    if condition.get("reason") in _FINAL:
        name = sandbox["metadata"]["name"]
        message = condition.get("message") or condition["reason"]
        raise SandboxFailed(f"sandbox {name!r} failed: {message}", condition["reason"])
    return False


def check_pod(pod: Object) -> None:
    """Raises when a container of the Pod is stuck."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in _STUCK:
            message = waiting.get("message") or "no further message"
            name = pod["metadata"]["name"]
            raise SandboxFailed(
                f"sandbox {name!r}: container {container.get('name')!r} cannot start: {reason}: {message}",
                reason,
            )


def _belongs_to(pod: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or [])


def _ready_condition(sandbox: Object) -> Object | None:
    conditions: list[Object] = (sandbox.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == "Ready"), None)


def _state(sandbox: Object) -> str:
    condition = _ready_condition(sandbox)
    message = condition.get("message") if condition else None
    return f": {message}" if message else ""


_Seen = tuple[str, str, Object]


class _Feed:
    """Events of two watches in one queue. Each watch has a thread; `stop` ends them."""

    def __init__(self, transport: Transport, name: str, deadline: float) -> None:
        self._transport = transport
        self._name = name
        self._deadline = deadline
        self._events: queue.SimpleQueue[_Seen | BaseException] = queue.SimpleQueue()
        self._watches: list[Watch] = []
        self._lock = threading.Lock()
        self._stopped = False

    def next(self) -> _Seen | None:
        """The next event; None when the time is over."""
        try:
            seen = self._events.get(timeout=max(0.0, self._remaining()))
        except queue.Empty:
            return None
        if isinstance(seen, BaseException):
            raise seen
        return seen

    def follow(self, kind: str, collection: str, version: str | None) -> None:
        thread = threading.Thread(
            target=self._run, args=(kind, collection, version), name=f"watch-{kind}-{self._name}", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            watches = list(self._watches)
        for watch in watches:
            watch.stop()

    def _remaining(self) -> float:
        return self._deadline - time.monotonic()

    def _run(self, kind: str, collection: str, version: str | None) -> None:
        try:
            while self._remaining() > 0 and not self._stopped:
                version = self._watch_once(kind, collection, version)
                if not self._stopped:
                    version = self._look(kind, collection, version)
        except Exception as error:  # noqa: BLE001
            # The socket is shut down under a reader when the feed stops; whatever that raises means nothing. Nor does a
            # Pod that we may not see: it only makes a failure known sooner.
            if self._stopped or kind == "pod":
                return
            if isinstance(error, httpx.HTTPError):
                error = EngineError(f"the watch of sandbox {self._name!r} broke: {error}")
            self._events.put(error)

    def _watch_once(self, kind: str, collection: str, version: str | None) -> str | None:
        params = {
            "fieldSelector": f"metadata.name={self._name}",
            "timeoutSeconds": str(max(1, math.ceil(self._remaining()))),
        }
        if version is not None:
            params["resourceVersion"] = version
        watch = self._transport.watch(collection, params)
        with self._lock:
            if self._stopped:
                return version
            self._watches.append(watch)
        try:
            for event in watch:
                found = event["object"]
                if event["type"] == "ERROR":
                    if found.get("code") == 410:
                        return None
                    raise EngineError(f"the watch of {kind} {self._name!r} broke: {found.get('message')}")
                version = found["metadata"].get("resourceVersion", version)
                if event["type"] != "BOOKMARK":
                    self._events.put((kind, event["type"], found))
        except EngineError as error:
            if error.status != 410:
                raise
            return None
        finally:
            with self._lock:
                self._watches.remove(watch)
        return version

    def _look(self, kind: str, collection: str, version: str | None) -> str | None:
        """After a watch has ended: what was missed in between."""
        if kind == "pod":
            return None  # a watch without a version begins with what is there
        found = self._transport.api("GET", f"{collection}/{self._name}")
        self._events.put((kind, "MODIFIED", found))
        newer: str | None = found["metadata"].get("resourceVersion", version)
        return newer
