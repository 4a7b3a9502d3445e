import httpx
import pytest
from fake import PODS, SANDBOXES, FakeEngine, pod

from agent_sandbox import (
    AuthenticationError,
    EngineError,
    Sandbox,
    SandboxExists,
    SandboxFailed,
    SandboxNotFound,
    SandboxNotReady,
)


def test_a_sandbox_is_posted_and_awaited(fake: FakeEngine) -> None:
    with Sandbox.create("web", env={"A": "1"}, labels={"team": "x"}, engine=fake.engine) as sandbox:
        assert (sandbox.name, sandbox.namespace) == ("web", "default")
        assert fake.body("POST") == {
            "apiVersion": "agents.x-k8s.io/v1beta1",
            "kind": "Sandbox",
            "metadata": {
                "name": "web",
                "namespace": "default",
                "labels": {"team": "x", "agents.x-k8s.io/created-by": "python-client"},
            },
            "spec": {
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {"name": "main", "image": "host", "env": [{"name": "A", "value": "1"}]}
                        ]
                    }
                }
            },
        }
        watch = fake.sent("GET", SANDBOXES)[0].url.params
        assert watch["fieldSelector"] == "metadata.name=web"
        assert watch["resourceVersion"] == "5"
        assert fake.objects
    assert not fake.objects, "deleted at the end of the block"
    assert fake.body("DELETE")["preconditions"] == {"uid": "uid-web"}


def test_names_are_made_up_and_differ(fake: FakeEngine) -> None:
    first, second = Sandbox.create(engine=fake.engine), Sandbox.create(engine=fake.engine)
    assert first.name != second.name
    assert first.name.startswith("sandbox-")


def test_the_block_deletes_also_when_it_fails(fake: FakeEngine) -> None:
    with pytest.raises(ZeroDivisionError), Sandbox.create(engine=fake.engine):
        raise ZeroDivisionError
    assert not fake.objects


def test_delete_is_done_once_and_forgives_what_is_gone(fake: FakeEngine) -> None:
    with Sandbox.create("web", engine=fake.engine) as sandbox:
        sandbox.delete()
        sandbox.delete()
    assert len(fake.sent("DELETE")) == 2, "not a third time at the end of the block"


def test_a_name_that_is_taken(fake: FakeEngine) -> None:
    Sandbox.create("web", engine=fake.engine)
    with pytest.raises(SandboxExists, match="already exists"):
        Sandbox.create("web", engine=fake.engine)
    assert fake.objects, "the other one is not touched"


@pytest.mark.parametrize("reason", ["PodFailed", "PodSucceeded", "InvalidConfiguration"])
def test_a_final_reason_fails_at_once_and_cleans_up(fake: FakeEngine, reason: str) -> None:
    fake.on_post = lambda sandbox: fake.condition(sandbox, "False", reason, "the Pod ended")
    with pytest.raises(SandboxFailed, match="the Pod ended") as caught:
        Sandbox.create("web", engine=fake.engine)
    assert caught.value.reason == reason
    assert not fake.objects


def test_a_passing_reason_is_waited_out(fake: FakeEngine) -> None:
    def start(sandbox: dict) -> None:
        fake.condition(sandbox, "False", "DependenciesNotReady", "Pod is Pending")
        fake.becomes_ready(sandbox)

    fake.on_post = start
    Sandbox.create("web", engine=fake.engine)


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImagePull",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "CreateContainerError",
        "CreateContainerConfigError",
    ],
)
def test_a_stuck_container_fails_at_once_with_the_pods_message(fake: FakeEngine, reason: str) -> None:
    waiting = {"reason": reason, "message": "no such image: nope"}
    fake.on_post = lambda sandbox: fake.event(PODS, "MODIFIED", pod("web", waiting))
    with pytest.raises(SandboxFailed, match="no such image: nope") as caught:
        Sandbox.create("web", image="nope", engine=fake.engine)
    assert caught.value.reason == reason
    assert not fake.objects


def test_the_pod_of_an_earlier_sandbox_does_not_count(fake: FakeEngine) -> None:
    def start(sandbox: dict) -> None:
        fake.event(PODS, "ADDED", pod("web", {"reason": "ErrImagePull"}, owner="uid-of-another"))
        fake.event(PODS, "MODIFIED", pod("web", {"reason": "ContainerCreating"}))
        fake.becomes_ready(sandbox)

    fake.on_post = start
    Sandbox.create("web", engine=fake.engine)


def test_too_late_says_what_was_missing_and_cleans_up(fake: FakeEngine) -> None:
    fake.on_post = lambda sandbox: fake.condition(sandbox, "False", "DependenciesNotReady", "Pod is Pending")
    with pytest.raises(SandboxNotReady, match="within 0.2 seconds: Pod is Pending"):
        Sandbox.create("web", timeout=0.2, engine=fake.engine)
    assert not fake.objects


def test_a_watch_that_ends_is_taken_up_again(fake: FakeEngine) -> None:
    def start(sandbox: dict) -> None:
        fake.condition(sandbox, "False", "DependenciesNotReady", "Pod is Pending")
        fake.end_watch(SANDBOXES)
        fake.event(SANDBOXES, "ERROR", {"code": 410, "message": "too old"})
        fake.becomes_ready(sandbox)

    fake.on_post = start
    Sandbox.create("web", engine=fake.engine)


def test_a_change_between_two_watches_is_not_missed(fake: FakeEngine) -> None:
    def start(sandbox: dict) -> None:
        fake.becomes_ready(sandbox)
        fake.events[SANDBOXES].get()
        fake.end_watch(SANDBOXES)

    fake.on_post = start
    Sandbox.create("web", engine=fake.engine)


def test_deleted_by_somebody_else_while_waiting(fake: FakeEngine) -> None:
    fake.on_post = lambda sandbox: fake.event(SANDBOXES, "DELETED", sandbox)
    with pytest.raises(SandboxNotFound, match="was deleted"):
        Sandbox.create("web", engine=fake.engine)


def test_an_interrupt_while_waiting_cleans_up(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent_sandbox._sandbox.wait_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(engine=fake.engine)
    assert not fake.objects


def test_an_answer_that_never_came_is_cleaned_up_too(fake: FakeEngine) -> None:
    def lost(sandbox: dict) -> None:
        raise httpx.ReadError("connection reset")

    fake.on_post = lost
    with pytest.raises(EngineError, match="connection reset"):
        Sandbox.create(engine=fake.engine)
    assert not fake.objects
    assert len(fake.sent("POST")) == 1, "nothing is sent twice"
    with pytest.raises(EngineError):
        Sandbox.create("given", engine=fake.engine)
    assert fake.objects, "a given name may belong to somebody else"


def test_a_refusal_is_told_in_the_engines_words(fake: FakeEngine) -> None:
    fake.api_answer = httpx.Response(
        422, json={"message": "metadata.name: Invalid value", "reason": "Invalid"}
    )
    with pytest.raises(EngineError, match="metadata.name: Invalid value") as caught:
        Sandbox.create("web", engine=fake.engine)
    assert caught.value.status == 422
    fake.api_answer = httpx.Response(401, json={"message": "Unauthorized"})
    with pytest.raises(AuthenticationError):
        Sandbox.list(engine=fake.engine)


def test_get_and_list_find_what_exists_and_do_not_delete_it(fake: FakeEngine) -> None:
    Sandbox.create("web", engine=fake.engine)
    with Sandbox.get("web", engine=fake.engine) as found:
        assert repr(found) == "<Sandbox default/web>"
    assert [sandbox.name for sandbox in Sandbox.list(engine=fake.engine)] == ["web"]
    with pytest.raises(SandboxNotFound, match="nobody"):
        Sandbox.get("nobody", engine=fake.engine)


def test_a_pod_that_may_not_be_watched_is_no_obstacle(fake: FakeEngine) -> None:
    def start(sandbox: dict) -> None:
        fake.event(PODS, "ERROR", {"code": 403, "message": "pods is forbidden"})
        fake.becomes_ready(sandbox)

    fake.on_post = start
    Sandbox.create("web", engine=fake.engine)


def test_a_watch_that_breaks_is_told(fake: FakeEngine) -> None:
    fake.on_post = lambda sandbox: fake.event(SANDBOXES, "ERROR", {"code": 500, "message": "store closed"})
    with pytest.raises(EngineError, match="store closed"):
        Sandbox.create("web", engine=fake.engine)
    assert not fake.objects
