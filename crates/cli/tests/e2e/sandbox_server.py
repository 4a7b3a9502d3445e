"""A web server inside a sandbox, for the tests of the router. Only the standard library: it runs in the image `host`.

  /                page with a style sheet, a script, fetch and a WebSocket; `result` is a promise of what worked
  /attack?ORIGIN   page that tries to use another sandbox
  /log             targets of all requests so far, one per line
  /headers         the head of the request
  /ws              WebSocket that echoes; the text `close CODE REASON` makes it close
  /closed          the code and reason with which the last WebSocket was closed by its client
  /events          server-sent events: one at once, one more for each request of /next
  /sink            reads the body and answers with its length
  /source?BYTES    that many bytes; without a number, bytes without end
  /silent          never answers
"""

import asyncio
import base64
import hashlib
import resource
import struct

PAGE = b"""<!doctype html><link rel=stylesheet href=style.css><p id=text>text</p><script>
const text = document.getElementById('text');
const socket = (url) => new Promise((done) => {
  const ws = new WebSocket(url, ['chat']);
  ws.onopen = () => ws.send('hello');
  ws.onmessage = (event) => done(`${event.data} by ${ws.protocol}`);
  ws.onerror = () => done('refused');
});
const works = async () => ({
  style: getComputedStyle(text).color,
  script: window.script,
  fetch: await (await fetch('data.json')).json(),
  post: await (await fetch('/sink', {method: 'POST', body: 'four'})).text(),
  ws: await socket(`ws://${location.host}/ws`),
  cookie: document.cookie,
  search: location.search,
});
const attempt = (trying) => trying.then(() => 'passed', () => 'refused');
const loads = (tag, url) => new Promise((done) => {
  const element = document.createElement(tag);
  element.onload = () => done('passed');
  element.onerror = () => done('refused');
  element.src = url;
  document.body.append(element);
});
const attack = async (victim) => ({
  fetch: await attempt(fetch(`${victim}/victim-fetch`, {credentials: 'include'})),
  post: await attempt(fetch(`${victim}/victim-post`, {method: 'POST', credentials: 'include', body: 'x'})),
  opaque: await attempt(fetch(`${victim}/victim-opaque`, {mode: 'no-cors', credentials: 'include'})),
  image: await loads('img', `${victim}/victim-image`),
  script: await loads('script', `${victim}/victim-script`),
  frame: await loads('iframe', `${victim}/victim-frame`),
  ws: await socket(`${victim.replace('http', 'ws')}/ws?victim-ws`),
});
</script><script src=/script.js></script>"""
RUN = b"<script>window.result = location.pathname === '/attack' ? attack(location.search.slice(1)) : works();</script>"

FILES = {
    "/": ("text/html", PAGE + RUN),
    "/attack": ("text/html", PAGE + RUN),
    "/style.css": ("text/css", b"#text { color: rgb(1, 2, 3) }"),
    "/script.js": ("text/javascript", b"window.script = 'loaded';"),
    "/data.json": ("application/json", b'{"from": "sandbox"}'),
}
CHUNK = bytes(64 * 1024)

log, closed, events = [], [], asyncio.Semaphore(1)


def head(status, kind, length=None):
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()


async def body_of(reader, headers):
    """The length of the body, which is read and forgotten."""
    if headers.get("transfer-encoding") != "chunked":
        left = total = int(headers.get("content-length", 0))
        while left:
            left -= len(await reader.readexactly(min(left, len(CHUNK))))
        return total
    total = 0
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
        total += size
    await reader.readline()
    return total


async def serve(reader, writer):
    try:
        while raw := await reader.readuntil(b"\r\n\r\n"):
            lines = raw.decode("latin-1").split("\r\n")
            target = lines[0].split(" ")[1]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            path, _, query = target.partition("?")
            log.append(target)
            if path == "/ws":
                return await websocket(reader, writer, headers)
            length = await body_of(reader, headers)
            if path in FILES:
                kind, content = FILES[path]
            elif path == "/silent":
                return await reader.read()
            elif path == "/events":
                await stream_events(reader, writer)
                return
            elif path == "/source" and not query:
                writer.write(head("200 OK", "application/octet-stream"))
                while True:
                    writer.write(b"10000\r\n" + CHUNK + b"\r\n")
                    await writer.drain()
            elif path == "/source":
                left = int(query)
                writer.write(head("200 OK", "application/octet-stream", left))
                while left:
                    part = CHUNK[:left]
                    writer.write(part)
                    left -= len(part)
                    await writer.drain()
                continue
            else:
                if path == "/next":
                    events.release()
                answers = {"/log": "\n".join(log), "/headers": raw.decode("latin-1"), "/sink": str(length)}
                answers["/closed"] = " ".join(closed)
                kind, content = "text/plain", answers.get(path, "ok").encode()
            writer.write(head("200 OK", kind, len(content)) + content)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def stream_events(reader, writer):
    writer.write(head("200 OK", "text/event-stream"))
    for number in range(3):
        await events.acquire()
        event = f"data: {number}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def frame(opcode, payload):
    size = len(payload)
    length = bytes([size]) if size < 126 else struct.pack(">BH", 126, size) if size < 65536 else struct.pack(">BQ", 127, size)
    return bytes([0x80 | opcode]) + length + payload


async def websocket(reader, writer, headers):
    accept = hashlib.sha1((headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    answer = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    answer.append("Sec-WebSocket-Accept: " + base64.b64encode(accept).decode())
    if offered := headers.get("sec-websocket-protocol"):
        answer.append("Sec-WebSocket-Protocol: " + offered.split(",")[-1].strip())
    writer.write(("\r\n".join(answer) + "\r\n\r\n").encode())
    while True:
        first, second = await reader.readexactly(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack(">H", await reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await reader.readexactly(8))
        mask = await reader.readexactly(4)
        masked = await reader.readexactly(size)
        payload = (int.from_bytes(masked, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")).to_bytes(size, "big")
        opcode = first & 15
        if opcode == 8:
            code = struct.unpack(">H", payload[:2])[0] if payload else 1005
            closed[:] = [str(code), payload[2:].decode()]
            writer.write(frame(8, payload))
            return await writer.drain()
        if opcode == 9:
            writer.write(frame(10, payload))
        elif payload.startswith(b"close "):
            _, code, reason = payload.split(b" ", 2)
            writer.write(frame(8, struct.pack(">H", int(code)) + reason))
            await writer.drain()
            return await reader.read()
        elif opcode in (1, 2):
            writer.write(frame(opcode, payload))
        await writer.drain()


async def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = await asyncio.start_server(serve, "0.0.0.0", 8000, backlog=4096)
    print("listening", flush=True)
    await server.serve_forever()


asyncio.run(main())
