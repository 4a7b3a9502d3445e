import io
from datetime import datetime, timezone

import httpx
import pytest
from fake import FakeEngine

from agent_sandbox import FileAccessDenied, FileEntry, FileError, FileNotFound, Sandbox


@pytest.fixture
def sandbox(fake: FakeEngine) -> Sandbox:
    sandbox = Sandbox.create("web", engine=fake.engine)
    fake.requests.clear()
    fake.runtime = lambda request: httpx.Response(200, json={})
    return sandbox


@pytest.mark.parametrize("data", [b"a\r\nb\xff", "text ü", io.BytesIO(b"from a file")])
def test_write_sends_one_file_part(sandbox: Sandbox, fake: FakeEngine, data: object) -> None:
    wanted = (
        data.encode() if isinstance(data, str) else data.getvalue() if isinstance(data, io.BytesIO) else data
    )
    sandbox.files.write('dir/q"x\\y ü.txt', data)  # type: ignore[arg-type]
    (request,) = fake.sent("POST", "/upload")
    boundary = request.headers["Content-Type"].split("boundary=")[1]
    assert (
        request.content
        == (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="dir/q\\"x\\\\y ü.txt"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        + wanted
        + f"\r\n--{boundary}--\r\n".encode()
    )


def test_a_path_with_a_line_break_is_refused_before_anything_is_sent(
    sandbox: Sandbox, fake: FakeEngine
) -> None:
    with pytest.raises(ValueError, match="line break"):
        sandbox.files.write("a\nb", b"")
    assert not fake.requests


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("a/b c", "/list/a%2Fb%20c"),
        ("/abs", "/list/%2Fabs"),
        (".", "/list/%2E"),
        ("..", "/list/%2E%2E"),
        ("a/../b", "/list/a%2F..%2Fb"),
        ("100%25", "/list/100%2525"),
        ("ü", "/list/%C3%BC"),
        ("a?b#c", "/list/a%3Fb%23c"),
    ],
)
def test_a_path_arrives_as_it_is(sandbox: Sandbox, fake: FakeEngine, path: str, raw: str) -> None:
    fake.runtime = lambda request: httpx.Response(200, json=[])
    assert sandbox.files.list(path) == []
    assert fake.requests[0].url.raw_path.decode() == raw


def test_read_gives_bytes_and_read_text_gives_text(sandbox: Sandbox, fake: FakeEngine) -> None:
    fake.runtime = lambda request: httpx.Response(200, content="ü".encode())
    assert sandbox.files.read("a.txt") == b"\xc3\xbc"
    assert sandbox.files.read_text("a.txt") == "ü"
    assert fake.requests[0].url.path == "/download/a.txt"


def test_a_listing_is_sorted_and_typed(sandbox: Sandbox, fake: FakeEngine) -> None:
    entries = [
        {"name": "b", "size": 4096, "type": "directory", "mod_time": 1.5},
        {"name": "a", "size": 3, "type": "file", "mod_time": 0},
    ]
    fake.runtime = lambda request: httpx.Response(200, json=entries)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    first, second = sandbox.files.list()
    assert first == FileEntry(name="a", size=3, is_directory=False, modified=epoch)
    assert second.is_directory


def test_exists_is_a_question(sandbox: Sandbox, fake: FakeEngine) -> None:
    fake.runtime = lambda request: httpx.Response(200, json={"path": "a", "exists": True})
    assert sandbox.files.exists("a") is True


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (404, "File not found", FileNotFound),
        (403, "Access denied", FileAccessDenied),
        (500, "File upload failed: [Errno 28] No space left on device", FileError),
    ],
)
def test_a_refusal_names_the_path_and_the_reason(
    sandbox: Sandbox, fake: FakeEngine, status: int, message: str, error: type
) -> None:
    fake.runtime = lambda request: httpx.Response(status, json={"message": message})
    for call in (
        sandbox.files.read,
        sandbox.files.list,
        sandbox.files.exists,
        lambda path: sandbox.files.write(path, b""),
    ):
        with pytest.raises(error) as caught:
            call("../x")
        assert message in str(caught.value)
        assert caught.value.path == "../x"
