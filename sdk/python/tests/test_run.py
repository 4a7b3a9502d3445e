from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import httpx
import pytest
from fake import FakeEngine

from agent_sandbox import (
    AuthenticationError,
    CommandError,
    CommandResult,
    EngineError,
    Sandbox,
    SandboxNotFound,
    SandboxNotReady,
    SandboxUnreachable,
)


@pytest.fixture
def sandbox(fake: FakeEngine) -> Sandbox:
    sandbox = Sandbox.create("web", engine=fake.engine)
    fake.requests.clear()
    fake.runtime = execute_here
    return sandbox


def execute_here(request: httpx.Request) -> httpx.Response:
    """Does what the runtime does: splits words, no shell."""
    asked = json.loads(request.content)
    done = subprocess.run(shlex.split(asked["command"]), check=False, capture_output=True, text=True, cwd="/")
    return answer(done.stdout, done.stderr, done.returncode)


def answer(stdout: str = "", stderr: str = "", exit_code: int = 0, **more: Any) -> httpx.Response:
    return httpx.Response(200, json={"stdout": stdout, "stderr": stderr, "exit_code": exit_code, **more})


def test_a_string_runs_in_a_shell(sandbox: Sandbox) -> None:
    result = sandbox.run("echo 'it'\"'\"'s' $((6*7)) && echo oops >&2; exit 3")
    assert result == CommandResult(stdout="it's 42\n", stderr="oops\n", exit_code=3, timed_out=False)


def test_a_list_runs_as_it_is(sandbox: Sandbox) -> None:
    assert sandbox.run(["printf", "%s|", "a b", "$HOME", "x'y", ""]).stdout == "a b|$HOME|x'y||"


@pytest.mark.parametrize(
    "command", ['printf "%s %s" "$PWD" "$GREETING"', ["sh", "-c", 'printf "%s %s" "$PWD" "$GREETING"']]
)
def test_env_and_cwd_hold_for_one_command(sandbox: Sandbox, command: Any) -> None:
    assert sandbox.run(command, env={"GREETING": "it's $5"}, cwd="/usr").stdout == "/usr it's $5"
    assert sandbox.run("echo $GREETING").stdout == "\n"


def test_a_directory_that_is_missing_stops_the_command(sandbox: Sandbox) -> None:
    result = sandbox.run("echo ran", cwd="/no/such/dir")
    assert result.stdout == ""
    assert result.exit_code != 0


def test_the_request_names_the_sandbox(sandbox: Sandbox, fake: FakeEngine) -> None:
    sandbox.run("true")
    (request,) = fake.sent("POST", "/execute")
    assert request.url == "http://router.test/execute"
    assert request.headers["X-Sandbox-ID"] == "web"
    assert request.headers["X-Sandbox-Namespace"] == "default"
    assert request.headers["X-Sandbox-Port"] == "8888"
    assert json.loads(request.content) == {"command": "sh -c true"}


def test_a_timeout_travels_with_the_command(sandbox: Sandbox, fake: FakeEngine) -> None:
    fake.runtime = lambda request: answer("begun", "", 124, timed_out=True)
    result = sandbox.run("sleep 100", timeout=0.5)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "begun")
    assert fake.body("POST", "/execute")["timeout_seconds"] == 0.5
    assert fake.sent("POST", "/execute")[0].extensions["timeout"]["read"] == 30.5


def test_without_a_timeout_the_runtimes_own_limit_holds(sandbox: Sandbox, fake: FakeEngine) -> None:
    sandbox.run("true")
    assert "timeout_seconds" not in fake.body("POST", "/execute")
    assert fake.sent("POST", "/execute")[0].extensions["timeout"]["read"] is None


def test_check_raises_with_the_result(sandbox: Sandbox) -> None:
    assert sandbox.run("true", check=True).exit_code == 0
    with pytest.raises(CommandError, match="'echo no >&2; exit 2' exited with 2: no") as caught:
        sandbox.run("echo no >&2; exit 2", check=True)
    assert caught.value.result.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"command": ""}, "empty"),
        ({"command": []}, "empty"),
        ({"command": "true", "timeout": 0}, "timeout"),
        ({"command": "true", "env": {"A=B": "1"}}, "A=B"),
        ({"command": "true", "env": {"A\n": "1"}}, "environment"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    sandbox: Sandbox, fake: FakeEngine, arguments: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        sandbox.run(**arguments)
    assert not fake.requests


@pytest.mark.parametrize(
    ("status", "detail", "error"),
    [
        (401, "unauthenticated", AuthenticationError),
        (404, 'Sandbox "default/web" not found.', SandboxNotFound),
        (503, 'Sandbox "default/web" is suspended. Resume it with: …', SandboxNotReady),
        (502, "Could not connect to the backend sandbox: web", SandboxUnreachable),
        (504, "Timed out waiting for the backend sandbox: web", SandboxUnreachable),
        (400, "Invalid namespace format.", EngineError),
    ],
)
def test_what_the_router_says_becomes_an_exception(
    sandbox: Sandbox, fake: FakeEngine, status: int, detail: str, error: type
) -> None:
    fake.runtime = lambda request: httpx.Response(status, json={"detail": detail})
    with pytest.raises(error) as caught:
        sandbox.run("true")
    assert detail in str(caught.value)
    assert len(fake.sent("POST")) == 1, "nothing is sent twice"


@pytest.mark.parametrize(
    ("failure", "error"), [(httpx.ReadTimeout, SandboxUnreachable), (httpx.ConnectError, EngineError)]
)
def test_a_broken_connection_is_told_and_not_repeated(
    sandbox: Sandbox, fake: FakeEngine, failure: type, error: type | None
) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise failure("broken")

    fake.runtime = broken
    assert error is not None
    with pytest.raises(error):
        sandbox.run("true")
    assert len(fake.sent("POST")) == 1
