"""Drives a headless Chromium by its debugging protocol.

Arguments: pairs of a URL and a JavaScript expression; prints the value of each expression as a line of JSON. A promise is
waited for, and so is an expression that is `undefined` while the page loads.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from websockets.sync.client import connect

PATIENCE = 60
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
]


class Page:
    def __init__(self, ws, session=None):
        self.ws, self.session, self.count = ws, session, 0

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        self.ws.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.ws.recv(timeout=PATIENCE))
            if answer.get("id") == self.count and answer.get("sessionId") == self.session:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, url, expression):
        navigated = self.call("Page.navigate", url=url)
        assert "errorText" not in navigated, navigated
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ready = "document.readyState === 'complete' ? (" + expression + ") : undefined"
            result = self.call("Runtime.evaluate", expression=ready, awaitPromise=True, returnByValue=True)
            assert "exceptionDetails" not in result, result
            if "value" in result["result"]:
                return result["result"]["value"]
        raise AssertionError(f"{url} has no {expression}")


def main(pairs):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        quiet = subprocess.DEVNULL
        browser = subprocess.Popen(["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=quiet, stderr=quiet)
        try:
            port_file = pathlib.Path(profile, "DevToolsActivePort")
            until = time.monotonic() + PATIENCE
            while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
                assert browser.poll() is None and time.monotonic() < until, "Chromium did not start"
                time.sleep(0.05)
            port, path = port_file.read_text().splitlines()
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None) as ws:
                root = Page(ws)
                target = root.call("Target.createTarget", url="about:blank")["targetId"]
                session = root.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
                page = Page(ws, session)
                page.call("Page.enable")
                for url, expression in zip(pairs[::2], pairs[1::2], strict=True):
                    print(json.dumps(page.value(url, expression)), flush=True)
        finally:
            browser.terminate()
            browser.wait(timeout=PATIENCE)


main(sys.argv[1:])
