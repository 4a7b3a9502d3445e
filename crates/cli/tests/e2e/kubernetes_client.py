"""The published Python client of Kubernetes against the engine in KUBECONFIG."""

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream

GROUP, VERSION, PLURAL = "agents.x-k8s.io", "v1beta1", "sandboxes"

config.load_kube_config()
objects, core = client.CustomObjectsApi(), client.CoreV1Api()

command = ["sh", "-c", "echo started; sleep 3600"]
manifest = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "Sandbox",
    "metadata": {"name": "from-python"},
    "spec": {
        "podTemplate": {
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "host", "command": command}],
            }
        }
    },
}
objects.create_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, manifest)


def ready(sandbox: dict) -> bool:
    conditions = sandbox.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


watcher = watch.Watch()
events = watcher.stream(
    objects.list_namespaced_custom_object, GROUP, VERSION, "default", PLURAL, timeout_seconds=30
)
assert any(ready(event["object"]) for event in events), "never became ready"
watcher.stop()

pod = core.read_namespaced_pod("from-python", "default")
assert pod.status.phase == "Running" and pod.status.pod_ip, pod.status
# A follower has the first line when it comes, however busy the machine is.
followed = core.read_namespaced_pod_log("from-python", "default", follow=True, _preload_content=False)
assert followed.readline() == b"started\n"
followed.close()
assert core.read_namespaced_pod_log("from-python", "default") == "started\n"

said = stream(
    core.connect_get_namespaced_pod_exec,
    "from-python",
    "default",
    command=["sh", "-c", "echo out; echo err >&2"],
    stdout=True,
    stderr=True,
    stdin=False,
    tty=False,
)
assert sorted(said.split()) == ["err", "out"], said

# This client writes its flags as Python does: True.
session = stream(
    core.connect_get_namespaced_pod_exec,
    "from-python",
    "default",
    command=["sh", "-c", "read line; echo got $line"],
    stdout=True,
    stderr=True,
    stdin=True,
    tty=False,
    _preload_content=False,
)
session.write_stdin("input\n")
session.run_forever(timeout=30)
assert session.read_stdout(timeout=1) == "got input\n"
stamped = core.read_namespaced_pod_log("from-python", "default", timestamps=True)
assert stamped.endswith("Z started\n"), stamped

# One port that answers, one where nobody listens.
forwarded = portforward(
    core.connect_get_namespaced_pod_portforward, "from-python", "default", ports="8888,9"
)
connection = forwarded.socket(8888)
connection.settimeout(30)
connection.sendall(b"GET / HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n")
answer = b""
while received := connection.recv(4096):
    answer += received
assert answer.startswith(b"HTTP/1.1 200"), answer
assert "error forwarding port 9" in forwarded.error(9), forwarded.error(9)
assert forwarded.error(8888) is None, forwarded.error(8888)
forwarded.close()

labelled = core.list_namespaced_pod("default", label_selector="agents.x-k8s.io/sandbox-name-hash")
assert [item.metadata.name for item in labelled.items] == ["from-python"]

manifest["spec"]["operatingMode"] = "Sideways"
manifest["metadata"]["name"] = "wrong"
try:
    objects.create_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, manifest)
    raise SystemExit("a wrong manifest was accepted")
except ApiException as refused:
    assert refused.status == 422 and "spec.operatingMode" in refused.body, refused.body

objects.delete_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, "from-python")
for event in watch.Watch().stream(core.list_namespaced_pod, "default", timeout_seconds=30):
    if event["type"] == "DELETED":
        break
else:
    raise SystemExit("the Pod was not collected")
print("all good")
