"""A server for probes: HTTP on 8001, HTTPS on 8002, the health check of gRPC on 8003. What it answers is in files."""

import http.server
import os
import socket
import ssl
import struct
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        well = (
            self.path == "/up?now=1"
            and self.headers["X-Token"] == "hunter2"
            and self.headers["Host"] == "box.test"
            and not os.path.exists("/tmp/sick")
        )
        self.send_response(200 if well else 503)
        self.end_headers()
        self.wfile.write(b"" if well else b"feeling sick")

    def log_message(self, *_):
        pass


def web(port, tls):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain("/tls/crt", "/tls/key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call(connection):
    """One call of HTTP/2, told by what a probe asks: no table of headers, no windows."""
    file = connection.makefile("rb")
    file.read(24)
    connection.sendall(frame(4, 0, 0, b""))
    asked = b""
    while head := file.read(9):
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream, payload = int.from_bytes(head[5:9], "big"), file.read(length)
        if kind == 4 and not flags & 1:
            connection.sendall(frame(4, 1, 0, b""))
        if kind == 0:
            asked += payload
            if flags & 1:
                break
    known = asked[5:] == b"\x0a\x03box"
    serving = 1 if known and not os.path.exists("/tmp/sick") else 2
    headers = b"\x88" + literal(b"content-type", b"application/grpc")
    connection.sendall(frame(1, 4, stream, headers) + frame(0, 0, stream, b"\0\0\0\0\x02\x08" + bytes([serving])))
    connection.sendall(frame(1, 5, stream, literal(b"grpc-status", b"0")))
    file.read(1)
    connection.close()


def grpc(port):
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            threading.Thread(target=call, args=(server.accept()[0],), daemon=True).start()


threading.Thread(target=web, args=(8001, False), daemon=True).start()
threading.Thread(target=web, args=(8002, True), daemon=True).start()
grpc(8003)
