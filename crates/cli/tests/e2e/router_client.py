"""Unchanged Python clients through the router: `websockets` and `grpcio`. Arguments: router address, token, .proto root.

The sandbox `web` runs `sandbox_server.py` on port 8000, and sandboxd on 9090.
"""

import sys
import tempfile

import grpc
import grpc_tools.protoc
import websockets.exceptions
from websockets.sync.client import connect

ADDRESS, TOKEN, PROTO = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Sandbox-ID": "web", "X-Sandbox-Port": "8000"}


def websocket(**more):
    return connect(f"ws://{ADDRESS}/ws", additional_headers=HEADERS, **more)


def frames_of_every_kind_come_back():
    with websocket(max_size=None) as ws:
        for message in ["text ✓", b"\x00\xff", "x" * 125, "x" * 126, "y" * 70_000, b"z" * 3_000_000]:
            ws.send(message)
            assert ws.recv(timeout=30) == message
        ws.ping().wait(timeout=30)


def subprotocols_and_close_codes_pass_both_ways():
    with websocket(subprotocols=["first", "second"]) as ws:
        assert ws.subprotocol == "second"
        ws.send("close 4001 enough of this")
        try:
            ws.recv(timeout=30)
        except websockets.exceptions.ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "enough of this"), closed
        else:
            raise AssertionError("it was not closed")
    with websocket() as ws:
        assert ws.subprotocol is None
        ws.close(4002, "bye")


def handshake_without_a_token_is_refused_with_the_reason():
    try:
        connect(f"ws://{ADDRESS}/ws", additional_headers={"X-Sandbox-ID": "web", "X-Sandbox-Port": "8000"})
    except websockets.exceptions.InvalidStatus as refused:
        assert refused.response.status_code == 401, refused
        assert b"unauthenticated" in refused.response.body, refused.response.body
    else:
        raise AssertionError("it was let in")


def metadata(sandbox="web", token=TOKEN):
    pairs = [("x-sandbox-id", sandbox), ("x-sandbox-port", "9090")]
    return pairs + [("authorization", f"Bearer {token}")] if token else pairs


def processes(channel, messages, services):
    stub = services.ProcessServiceStub(channel)
    config = messages.ProcessConfig(command=["sh", "-c", "hostname; echo oops >&2; exit 7"])
    done = stub.Execute(messages.ExecuteRequest(config=config), metadata=metadata(), timeout=30)
    assert (done.stdout, done.stderr, done.exit_code) == (b"web\n", b"oops\n", 7), done

    # Each answer is read before the next input is written, so the events cannot have waited for the end.
    config = messages.ProcessConfig(command=["sh", "-c", "while read line; do echo got $line; done"])
    call = stub.Start(messages.StartRequest(config=config), metadata=metadata(), timeout=60)
    process = next(call).init.process_id
    for word in ["one", "two", "three"]:
        stdin = messages.WriteStdinRequest(process_id=process, input=f"{word}\n".encode())
        stub.WriteStdin(stdin, metadata=metadata(), timeout=30)
        assert next(call).stdout == f"got {word}\n".encode()
    stub.WriteStdin(messages.WriteStdinRequest(process_id=process, eof={}), metadata=metadata(), timeout=30)
    assert next(call).exit.exit_code == 0
    assert list(call) == []

    # Many calls of one connection at once.
    config = messages.ProcessConfig(command=["hostname"])
    calls = [stub.Execute.future(messages.ExecuteRequest(config=config), metadata=metadata(), timeout=60) for _ in range(50)]
    assert all(call.result().stdout == b"web\n" for call in calls)

    # A megabyte in many messages, in order.
    config = messages.ProcessConfig(command=["seq", "200000"])
    call = stub.Start(messages.StartRequest(config=config), metadata=metadata(), timeout=60)
    assert b"".join(event.stdout for event in call) == "".join(f"{n}\n" for n in range(1, 200001)).encode()

    # A cancelled call ends its process.
    config = messages.ProcessConfig(command=["sh", "-c", "echo $$; exec sleep 1000"])
    call = stub.Start(messages.StartRequest(config=config), metadata=metadata(), timeout=60)
    next(call)
    pid = next(call).stdout.decode().strip()
    call.cancel()
    look = f"while kill -0 {pid} 2>/dev/null; do sleep 0.02; done"
    config = messages.ProcessConfig(command=["sh", "-c", look])
    assert stub.Execute(messages.ExecuteRequest(config=config), metadata=metadata(), timeout=30).exit_code == 0


def errors_of_the_router_are_grpc_statuses(channel, messages, services):
    stub = services.ProcessServiceStub(channel)
    request = messages.ExecuteRequest(config=messages.ProcessConfig(command=["true"]))
    for pairs, code in [
        (metadata(sandbox="unknown"), grpc.StatusCode.NOT_FOUND),
        (metadata(token=None), grpc.StatusCode.UNAUTHENTICATED),
        (metadata(token="wrong"), grpc.StatusCode.UNAUTHENTICATED),
        (metadata(sandbox="../web"), grpc.StatusCode.INVALID_ARGUMENT),
        ([*metadata()[:1], ("x-sandbox-port", "1"), *metadata()[2:]], grpc.StatusCode.UNAVAILABLE),
    ]:
        try:
            stub.Execute(request, metadata=pairs, timeout=30)
        except grpc.RpcError as error:
            assert error.code() == code, (pairs, error)
        else:
            raise AssertionError(f"{code} was expected")


def main():
    frames_of_every_kind_come_back()
    subprotocols_and_close_codes_pass_both_ways()
    handshake_without_a_token_is_refused_with_the_reason()
    with tempfile.TemporaryDirectory() as made:
        flags = [f"-I{PROTO}", f"--python_out={made}", f"--grpc_python_out={made}"]
        include = grpc_tools.__path__[0] + "/_proto"
        assert grpc_tools.protoc.main(["protoc", *flags, f"-I{include}", "process/v1/process.proto"]) == 0
        sys.path.insert(0, made)
        from process.v1 import process_pb2, process_pb2_grpc

        with grpc.insecure_channel(ADDRESS) as channel:
            processes(channel, process_pb2, process_pb2_grpc)
            errors_of_the_router_are_grpc_statuses(channel, process_pb2, process_pb2_grpc)
    print("all good")


main()
