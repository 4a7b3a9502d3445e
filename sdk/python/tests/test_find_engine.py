"""How the local engine is found and started. The engine here is a small HTTP server."""

import base64
import json
import os
import stat
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from agent_sandbox import Engine, EngineError, EngineNotFound, Sandbox, _engine, _transport


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if "watch=true" in self.path:
            self.server.watching.set()  # type: ignore[attr-defined]
            self.wfile.write(b'{"type": "ADDED", "object": {}}\n')
            self.wfile.flush()
            self.connection.recv(1)  # until the client goes
        else:
            self.wfile.write(b'{"items": []}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.watching = threading.Event()  # type: ignore[attr-defined]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("ASB_BIN", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "data"


def write_files(data: Path, api: str) -> None:
    data.mkdir()
    kubeconfig = {"clusters": [{"cluster": {"server": api}}], "users": [{"user": {"token": "t-api"}}]}
    (data / "kubeconfig").write_text(json.dumps(kubeconfig))
    (data / "router.token").write_text("t-router\n")
    (data / "engine.json").write_text(json.dumps({"pid": 1, "version": "0.1.0", "api": api, "router": api}))


def program(path: Path, body: str) -> str:
    path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_running_engine_is_used(server: ThreadingHTTPServer, data: Path) -> None:
    write_files(data, url(server))
    assert Sandbox.list() == []


def test_an_engine_that_does_not_run_is_started(
    server: ThreadingHTTPServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "prepared", url(server))
    starter = program(
        tmp_path / "asb", f'[ "$*" = "up --detach" ] && cp -r "{tmp_path}/prepared" "$ASB_DATA_DIR"'
    )
    monkeypatch.setenv("ASB_BIN", starter)
    assert Sandbox.list() == []


def test_a_stale_file_is_not_believed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(data, "http://127.0.0.1:1")
    monkeypatch.setenv("ASB_BIN", program(tmp_path / "asb", "echo 'error: no space' >&2; exit 1"))
    with pytest.raises(EngineError, match="exit code 1: error: no space"):
        Sandbox.list()


def test_an_engine_that_starts_and_cannot_be_found(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASB_BIN", program(tmp_path / "asb", "exit 0"))
    with pytest.raises(EngineNotFound, match=str(data)):
        Sandbox.list()


def test_without_a_program_the_error_says_what_to_do(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EngineNotFound, match="hint: install asb, or set ASB_BIN"):
        Sandbox.list()
    monkeypatch.setenv("ASB_BIN", "/no/such/asb")
    with pytest.raises(EngineNotFound, match="/no/such/asb"):
        Sandbox.list()


def test_the_data_directory_follows_user_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASB_DATA_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert _engine.data_directory() == Path("/var/lib/asb")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert _engine.data_directory() == Path("/state/asb")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert _engine.data_directory() == Path("/home/me/.local/state/asb")
    monkeypatch.setenv("ASB_DATA_DIR", "/mine")
    assert _engine.data_directory() == Path("/mine")


def test_the_files_are_read_and_secrets_are_not_shown(data: Path) -> None:
    write_files(data, "https://127.0.0.1:1")
    kubeconfig = json.loads((data / "kubeconfig").read_text())
    kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(b"PEM").decode()
    (data / "kubeconfig").write_text(json.dumps(kubeconfig))
    engine = Engine.read(data)
    assert engine == Engine(
        api="https://127.0.0.1:1",
        router="https://127.0.0.1:1",
        ca="PEM",
        token="t-api",
        router_token="t-router",
    )
    assert "t-api" not in repr(engine)
    assert "t-router" not in repr(engine)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_files_that_make_no_sense_are_named(data: Path, content: str) -> None:
    write_files(data, "https://127.0.0.1:1")
    (data / "engine.json").write_text(content)
    with pytest.raises(EngineError, match=str(data)):
        Engine.read(data)


def test_a_watch_that_waits_can_be_stopped(server: ThreadingHTTPServer) -> None:
    transport = _transport.Transport(Engine(api=url(server), router=url(server)))
    watch = transport.watch("/things", {})
    ended = threading.Event()

    def read() -> None:
        try:
            for _ in watch:
                pass
        except httpx.HTTPError:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    assert server.watching.wait(5)  # type: ignore[attr-defined]
    begun = time.monotonic()
    while not ended.wait(0.01):
        watch.stop()
        assert time.monotonic() - begun < 5
