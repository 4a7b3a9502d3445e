"""With a real engine: `ASB_BIN=/path/to/asb pytest -m engine`."""

import os
import time

import pytest

from agent_sandbox import (
    CommandError,
    FileAccessDenied,
    FileNotFound,
    Sandbox,
    SandboxFailed,
    SandboxNotFound,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif("ASB_BIN" not in os.environ, reason="needs ASB_BIN, the asb program"),
]


def test_a_command_runs_in_a_sandbox_that_is_gone_afterwards() -> None:
    with Sandbox.create() as sandbox:
        result = sandbox.run("echo hi && id -u")
        assert result.stdout.startswith("hi\n")
        assert result.exit_code == 0
        name = sandbox.name
        assert name in [found.name for found in Sandbox.list()]
    deadline = time.monotonic() + 30
    with pytest.raises(SandboxNotFound):
        while time.monotonic() < deadline:  # it may still be on its way out
            Sandbox.get(name)


def test_files_make_the_round_trip() -> None:
    with Sandbox.create() as sandbox:
        content = bytes(range(256)) * 4096
        sandbox.files.write("dir/a b%20ü.bin", content)
        assert sandbox.files.read("dir/a b%20ü.bin") == content
        assert [entry.name for entry in sandbox.files.list("dir")] == ["a b%20ü.bin"]
        assert sandbox.files.exists("dir") and not sandbox.files.exists("nothing")
        sandbox.files.write("t.txt", "text")
        assert sandbox.run("cat t.txt").stdout == sandbox.files.read_text("t.txt") == "text"
        with pytest.raises(FileNotFound):
            sandbox.files.read("nothing")
        with pytest.raises(FileAccessDenied):
            sandbox.files.read("../../etc/passwd")


def test_environment_directory_and_limits() -> None:
    with Sandbox.create(env={"WHO": "sandbox"}) as sandbox:
        assert sandbox.run("echo $WHO $MORE", env={"MORE": "it's"}).stdout == "sandbox it's\n"
        assert sandbox.run(["pwd"], cwd="/usr").stdout == "/usr\n"
        slow = sandbox.run("echo begun; sleep 100", timeout=0.5)
        assert (slow.stdout, slow.exit_code, slow.timed_out) == ("begun\n", 124, True)
        with pytest.raises(CommandError):
            sandbox.run("exit 3", check=True)


def test_an_image_that_does_not_exist_fails_and_leaves_nothing() -> None:
    before = {sandbox.name for sandbox in Sandbox.list()}
    with pytest.raises(SandboxFailed, match="no-such-image"):
        Sandbox.create(image="no-such-image")
    assert {sandbox.name for sandbox in Sandbox.list()} <= before
