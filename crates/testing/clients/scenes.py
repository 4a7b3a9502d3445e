"""Runs scenes with an unchanged published client and prints one line of JSON for each.

Argument: JSON with `mode`, `pool`, its `members`, `template`, `namespace`, and what the mode needs (`url`, `token`, `gateway`).
The same scenes run with the synchronous and the asynchronous client; `value` awaits what the second one returns.
A scene that a version does not have is left out.
"""

import asyncio
import importlib.metadata
import inspect
import io
import json
import logging
import os
import sys
import threading
import time
import traceback
import uuid

import k8s_agent_sandbox as sdk
from k8s_agent_sandbox import exceptions, models
from kubernetes import client as kubernetes
from kubernetes import config as kubernetes_config

SCENES = []
VERSION = tuple(int(part) for part in importlib.metadata.version("k8s-agent-sandbox").split(".")[:3])


def scene(since=(0, 0, 0), before=(9, 0, 0), cheap=False):
    """Registers a scene for versions from `since` on; `cheap` ones also run in the short list."""

    def register(function):
        if since <= VERSION < before:
            SCENES.append((function, cheap))
        return function

    return register


class NotThere(Exception):
    """This client has nothing for the scene."""


async def value(result):
    return await result if inspect.isawaitable(result) else result


async def raises(kind, call):
    """The exception of this kind that the call must raise."""
    try:
        await value(call())
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


class AsyncBuffer(io.BytesIO):
    """What `read_to` of the asynchronous client writes to."""

    async def write(self, content):
        return super().write(content)


class Story:
    """What the scenes share: a client and the Sandbox of the first scene."""

    def __init__(self, settings, asynchronous):
        self.settings = settings
        self.asynchronous = asynchronous
        self.namespace = settings["namespace"]
        self.sandboxd = settings["mode"].startswith("sandboxd")
        self.client = self.new_client()
        self.custom = kubernetes.CustomObjectsApi()
        self.sandbox = None

    def new_client(self):
        if self.asynchronous:
            return sdk.AsyncSandboxClient(connection_config=connection(self.settings))
        return sdk.SandboxClient(connection_config=connection(self.settings))

    async def create(self, client=None, **options):
        client = client or self.client
        if VERSION < (0, 5, 0):
            options.setdefault("template", self.settings["template"])
        options.setdefault("warmpool", self.settings["pool"])
        options.setdefault("sandbox_ready_timeout", 30)
        return await value(client.create_sandbox(namespace=self.namespace, **options))

    def buffer(self):
        return AsyncBuffer() if self.asynchronous else io.BytesIO()

    async def run(self, sandbox, command, **options):
        return await value(sandbox.commands.run(command, **options))

    def claim(self, name):
        group = "extensions.agents.x-k8s.io"
        return self.custom.get_namespaced_custom_object(group, "v1beta1", self.namespace, "sandboxclaims", name)

    def object(self, name):
        return self.custom.get_namespaced_custom_object("agents.x-k8s.io", "v1beta1", self.namespace, "sandboxes", name)


def connection(settings):
    mode = settings["mode"]
    if mode == "tunnel":
        return models.SandboxLocalTunnelConnectionConfig()
    if mode == "direct" and VERSION >= (1, 0, 6):
        headers = {"Authorization": f"Bearer {settings['token']}"}
        return models.SandboxDirectConnectionConfig(api_url=settings["url"], extra_headers=headers)
    if mode == "direct":
        url = settings["url"].replace("://", f"://token:{settings['token']}@")
        return models.SandboxDirectConnectionConfig(api_url=url)
    if mode == "gateway":
        return models.SandboxGatewayConnectionConfig(gateway_name=settings["gateway"])
    if mode == "in-cluster":
        return models.SandboxInClusterConnectionConfig()
    if mode == "sandboxd-tunnel":
        return models.SandboxdPodTunnelConnectionConfig()
    if mode in ("sandboxd-pod-ip", "sandboxd-service"):
        name = {"sandboxd-pod-ip": "in-cluster-pod-ip", "sandboxd-service": "in-cluster-service"}[mode]
        try:
            return models.SandboxdInClusterConnectionConfig(mode=name)
        except ValueError:  # 1.0.5 had other names
            name = {"sandboxd-pod-ip": "pod-ip", "sandboxd-service": "service-dns"}[mode]
            return models.SandboxdInClusterConnectionConfig(mode=name)
    raise ValueError(f"mode {mode!r} is unknown")


def clients(mode):
    """Which clients have this mode in this version."""
    asynchronous = mode != "tunnel" and not (mode == "sandboxd-tunnel" and VERSION < (1, 0, 4))
    return [False, True] if asynchronous else [False]


@scene(cheap=True)
async def create_from_a_warm_pool(story):
    members = set()

    def full():
        listed = story.custom.list_namespaced_custom_object(
            "agents.x-k8s.io", "v1beta1", story.namespace, "sandboxes", label_selector="agents.x-k8s.io/warm-pool-sandbox"
        )
        members.update(item["metadata"]["name"] for item in listed["items"])
        return len(listed["items"]) == story.settings["members"]

    eventually("the pool is full", full)
    labels = {"team": "a", "story": "published"}
    story.sandbox = await story.create(labels=labels, shutdown_after_seconds=3600)
    assert story.sandbox.sandbox_id in members, f"{story.sandbox.sandbox_id} is not one of {members}"
    claim = story.claim(story.sandbox.claim_name)
    assert claim["metadata"]["labels"].items() >= labels.items(), claim["metadata"]
    assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete", claim["spec"]
    if not story.asynchronous or hasattr(story.sandbox, "status"):
        state, message = await value(story.sandbox.status())
        assert state == "SandboxReady", (state, message)


@scene(cheap=True)
async def run(story):
    result = await story.run(story.sandbox, "echo hello")
    assert (result.stdout, result.stderr, result.exit_code) == ("hello\n", "", 0), result
    result = await story.run(story.sandbox, "sh -c 'echo no >&2; exit 3'")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "no\n", 3), result


@scene(since=(1, 0, 6))
async def run_with_a_command_timeout(story):
    started = time.monotonic()
    result = await story.run(story.sandbox, "sleep 30", command_timeout=1)
    assert result.timed_out and result.exit_code == 124, result
    assert time.monotonic() - started < 15


@scene(since=(1, 0, 7))
async def run_with_env_and_cwd(story):
    def call():
        return story.sandbox.commands.run('echo "$NAME in $PWD"', env={"NAME": "agent"}, cwd="work")

    if not story.sandboxd:
        await raises(NotImplementedError, call)
        return
    await story.run(story.sandbox, "mkdir -p work")
    result = await value(call())
    assert result.exit_code == 0 and result.stdout.startswith("agent in /") and "/work" in result.stdout, result


@scene(cheap=True)
async def files_write_and_read(story):
    files = story.sandbox.files
    content = bytes(range(256)) * 4096
    await value(files.write("a.bin", content))
    assert await value(files.read("a.bin")) == content
    await value(files.write("text.txt", "grüße\n"))
    assert (await value(files.read("text.txt"))).decode() == "grüße\n"


@scene(since=(0, 5, 0))
async def files_in_directories(story):
    files = story.sandbox.files
    for name in ["deep/er/a b.txt", "/leading.txt", "100%25 ü.txt"]:
        await value(files.write(name, name))
        assert (await value(files.read(name))).decode() == name
    listed = {entry.name: entry.size for entry in await value(files.list("deep/er"))}
    assert listed == {"a b.txt": len("deep/er/a b.txt")}, listed


@scene(since=(1, 0, 5))
async def files_write_from_a_stream(story):
    content = b"streamed " * 100_000
    await value(story.sandbox.files.write("stream.bin", io.BytesIO(content)))
    assert await value(story.sandbox.files.read("stream.bin")) == content


@scene(since=(1, 0, 4))
async def files_read_to(story):
    kept = story.buffer()
    assert await value(story.sandbox.files.read_to("a.bin", kept)) == 256 * 4096
    assert kept.getvalue() == bytes(range(256)) * 4096
    await raises(Exception, lambda: story.sandbox.files.read_to("a.bin", story.buffer(), max_bytes=10))


@scene(cheap=True)
async def files_list_the_root(story):
    for path in [".", ""]:
        listed = {entry.name: entry for entry in await value(story.sandbox.files.list(path))}
        assert listed["a.bin"].size == 256 * 4096 and listed["a.bin"].type == "file", (path, listed)
        modified = getattr(listed["a.bin"], "modified", None)
        age = time.time() - (modified.timestamp() if modified else listed["a.bin"].mod_time)
        assert -60 < age < 600, age


@scene(cheap=True)
async def files_exist_or_not(story):
    for path, there in [("a.bin", True), (".", True), ("nothing.txt", False)]:
        assert await value(story.sandbox.files.exists(path)) is there, path


@scene(since=(1, 0, 0))
async def files_delete(story):
    files = story.sandbox.files
    if not story.sandboxd:
        await raises(NotImplementedError, lambda: files.delete("text.txt"))
        return
    await value(files.delete("text.txt"))
    assert await value(files.exists("text.txt")) is False
    error = await raises(exceptions.SandboxRequestError, lambda: files.delete("deep"))
    assert error.status_code == 409, error
    await value(files.delete("deep", recursive=True))
    assert await value(files.exists("deep")) is False


@scene(cheap=True)
async def unknown_file_is_a_404(story):
    error = await raises(exceptions.SandboxRequestError, lambda: story.sandbox.files.read("nothing.txt"))
    assert error.status_code == 404, (error, error.status_code)
    result = await story.run(story.sandbox, "echo still")
    assert result.stdout == "still\n", result


@scene(cheap=True)
async def list_claims(story):
    name = story.sandbox.claim_name
    assert (story.namespace, name) in await value(story.client.list_active_sandboxes())
    assert name in await value(story.client.list_all_sandboxes(namespace=story.namespace))
    if "label_selector" in inspect.signature(story.client.list_all_sandboxes).parameters:
        def listed(selector):
            return value(story.client.list_all_sandboxes(namespace=story.namespace, label_selector=selector))

        assert name in await listed("team=a")
        assert name not in await listed("team=b")


@scene(cheap=True)
async def get_sandbox(story):
    name = story.sandbox.claim_name
    same = await value(story.client.get_sandbox(name, namespace=story.namespace))
    assert same is story.sandbox
    error = await raises(
        exceptions.SandboxNotFoundError,
        lambda: story.client.get_sandbox("nothing", namespace=story.namespace, resolve_timeout=1),
    )
    assert "not found" in str(error), error


@scene(cheap=True)
async def missing_pool_has_its_own_exception(story):
    missing = "there-is-no-such-thing"
    if VERSION < (0, 5, 0):
        kind, options = exceptions.SandboxTemplateNotFoundError, {"template": missing, "warmpool": None}
    else:
        kind, options = exceptions.SandboxWarmPoolNotFoundError, {"warmpool": missing}
    await raises(kind, lambda: story.create(**options))
    left = await value(story.client.list_all_sandboxes(namespace=story.namespace))
    assert left == [story.sandbox.claim_name], left


@scene(before=(0, 5, 0))
async def template_without_a_pool_is_enough(story):
    sandbox = await story.create(warmpool=None)
    assert (await story.run(sandbox, "echo cold")).stdout == "cold\n"
    await value(sandbox.terminate())


@scene(since=(1, 0, 5))
async def claims_with_names_are_adopted(story):
    name = f"mine-{uuid.uuid4().hex[:8]}"
    first = await story.create(claim_name=name)
    assert first.claim_name == name
    await story.run(first, "sh -c 'echo kept > kept.txt'")
    other = story.new_client()
    error = await raises(Exception, lambda: story.create(client=other, claim_name=name))
    assert getattr(error, "status", None) == 409, error
    second = await story.create(client=other, claim_name=name, adopt_existing=True)
    assert second.sandbox_id == first.sandbox_id
    assert await value(second.files.read("kept.txt")) == b"kept\n"
    await value(second.terminate())
    if story.asynchronous:
        await other.close()


@scene(since=(0, 5, 1))
async def volume_claim_templates(story):
    resources = {"requests": {"storage": "16Mi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources}
    templates = [{"metadata": {"name": "extra"}, "spec": spec}]
    sandbox = await story.create(volume_claim_templates=templates)
    core = kubernetes.CoreV1Api()
    claim = core.read_namespaced_persistent_volume_claim(f"extra-{sandbox.sandbox_id}", story.namespace)
    assert claim.spec.resources.requests == {"storage": "16Mi"}, claim.spec
    assert claim.spec.storage_class_name, "the default class is on the claim"
    assert (await story.run(sandbox, "echo runs")).stdout == "runs\n"
    await value(sandbox.terminate())


@scene(since=(0, 5, 0))
async def metadata_and_variables_reach_the_pod(story):
    tier, note = "sandbox.users.io/tier", "sandbox.users.io/note"
    options = {"pod_labels": {tier: "gold"}, "pod_annotations": {note: "kept"}}
    if VERSION >= (1, 0, 0):
        options["env"] = {"GREETING": "hello there"}
    sandbox = await story.create(**options)
    pod_name = await value(sandbox.get_pod_name())
    core = kubernetes.CoreV1Api()

    def arrived():
        metadata = core.read_namespaced_pod(pod_name, story.namespace).metadata
        return metadata.labels.get(tier) == "gold" and (metadata.annotations or {}).get(note) == "kept"

    eventually("labels and annotations are on the Pod", arrived)
    if VERSION >= (1, 0, 0):
        result = await story.run(sandbox, "sh -c 'echo $GREETING'")
        assert result.stdout == "hello there\n", result
    await value(sandbox.terminate())


@scene()
async def same_handle_after_suspend_and_resume(story):
    name = story.sandbox.sandbox_id

    def turn(mode):
        body = {"spec": {"operatingMode": mode}}
        story.custom.patch_namespaced_custom_object(
            "agents.x-k8s.io", "v1beta1", story.namespace, "sandboxes", name, body
        )

    core = kubernetes.CoreV1Api()

    def pods():
        fields = f"metadata.name={name}"
        return [pod.metadata.uid for pod in core.list_namespaced_pod(story.namespace, field_selector=fields).items]

    def ready():
        conditions = story.object(name).get("status", {}).get("conditions", [])
        return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)

    before = pods()
    turn("Suspended")
    eventually("the Pod is gone", lambda: not pods())
    turn("Running")
    eventually("another Pod is ready", lambda: pods() and pods() != before and ready())
    # A client that is connected to the Pod itself learns of its end by calls that fail, until its kubectl has ended.
    until = time.monotonic() + 20
    while True:
        try:
            result = await story.run(story.sandbox, "echo awake", timeout=5)
            break
        except RuntimeError:
            if time.monotonic() > until:
                raise
            threading.Event().wait(0.1)
    assert result.stdout == "awake\n", result


@scene(cheap=True)
async def closed_handle_keeps_the_claim(story):
    name = story.sandbox.claim_name
    if not hasattr(story.sandbox, "close_connection"):
        raise NotThere("the asynchronous client before 0.5")
    await value(story.sandbox.close_connection())
    assert story.sandbox.commands is None and not story.sandbox.is_active
    again = await value(story.client.get_sandbox(name, namespace=story.namespace))
    assert again is not story.sandbox
    story.sandbox = again
    assert (await story.run(again, "echo again")).stdout == "again\n"


@scene(cheap=True)
async def terminate_deletes_the_sandbox(story):
    sandbox = story.sandbox
    await value(sandbox.terminate())

    async def state():
        return (await value(sandbox.status()))[0]

    if hasattr(sandbox, "status"):
        await eventually_async("the Sandbox is gone", state, "SandboxNotFound")
    error = await raises(
        exceptions.SandboxNotFoundError,
        lambda: story.client.get_sandbox(sandbox.claim_name, namespace=story.namespace, resolve_timeout=1),
    )
    assert "not found" in str(error), error


@scene()
async def delete_by_name_and_delete_all(story):
    names = [(await story.create()).claim_name for _ in range(2)]
    await value(story.client.delete_sandbox(names[0], namespace=story.namespace))
    await value(story.client.delete_all())
    assert await value(story.client.list_active_sandboxes()) == []

    def gone():
        group = "extensions.agents.x-k8s.io"
        claims = story.custom.list_namespaced_custom_object(group, "v1beta1", story.namespace, "sandboxclaims")
        return not {claim["metadata"]["name"] for claim in claims["items"]} & set(names)

    eventually("both claims are gone", gone)


@scene()
async def context_manager_deletes_what_it_made(story):
    client = story.new_client()
    if story.asynchronous:
        async with client:
            name = (await story.create(client=client)).claim_name
    elif VERSION >= (1, 0, 7):
        with client:
            name = (await story.create(client=client)).claim_name
    else:
        raise NotThere("the synchronous client before 1.0.7")
    left = await value(story.client.list_all_sandboxes(namespace=story.namespace))
    assert name not in left, left


def eventually(what, condition, patience=30):
    until = time.monotonic() + patience
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < until, f"never happened: {what}"
        pause.wait(0.05)


async def eventually_async(what, current, wanted, patience=30):
    until = time.monotonic() + patience
    pause = threading.Event()
    while (state := await current()) != wanted:
        assert time.monotonic() < until, f"never happened: {what}; it is {state}"
        pause.wait(0.05)


async def play(settings, asynchronous):
    """Plays all scenes; after a failed creation there is nothing to do for the others."""
    kind = "async" if asynchronous else "sync"
    story = Story(settings, asynchronous)
    passed = True
    for function, cheap in SCENES:
        if settings.get("cheap") and not cheap:
            continue
        started = time.monotonic()
        try:
            await function(story)
            error = ""
        except NotThere:
            continue
        except Exception:
            error = traceback.format_exc()
        line = {"client": kind, "scene": function.__name__, "ok": not error, "detail": error}
        print(json.dumps({**line, "seconds": round(time.monotonic() - started, 2)}), flush=True)
        passed = passed and not error
        if story.sandbox is None:
            break
    await value(story.client.delete_all())
    if asynchronous:
        await story.client.close()
    return passed


def main():
    logging.getLogger().setLevel(logging.WARNING)
    settings = json.loads(sys.argv[1])
    if "KUBECONFIG" in os.environ:
        kubernetes_config.load_kube_config()
    else:
        kubernetes_config.load_incluster_config()
    passed = [asyncio.run(play(settings, asynchronous)) for asynchronous in clients(settings["mode"])]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
