"""Sends requests to a sandbox through the router until a file appears, then prints what became of them as JSON.

Arguments: URL of the router, namespace, sandbox, token, path of the file. Every request is on a connection of its own or on
one that is kept, in turn; a kept connection that the router closed is opened again, as clients do, and counted.
"""

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

URL, NAMESPACE, SANDBOX, TOKEN, STOP = sys.argv[1:]
HEADERS = {
    "X-Sandbox-ID": SANDBOX,
    "X-Sandbox-Namespace": NAMESPACE,
    "Authorization": f"Bearer {TOKEN}",
    "Content-Type": "application/json",
}


def connect():
    target = urlsplit(URL)
    return http.client.HTTPConnection(target.hostname, target.port, timeout=10)


def request(connection):
    connection.request("POST", "/execute", json.dumps({"command": "echo here"}), HEADERS)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200 or json.loads(body)["stdout"] != "here\n":
        raise RuntimeError(f"{response.status}: {body[:200]!r}")
    return response


def main():
    kept, outage, answered, reopened, failed, errors = connect(), 0.0, 0, 0, 0, []
    last = time.monotonic()
    while not os.path.exists(STOP):
        for fresh in (False, True):
            connection = connect() if fresh else kept
            try:
                try:
                    request(connection)
                except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                    if fresh:
                        raise
                    # The router may close a connection on which nothing happens.
                    reopened += 1
                    kept.close()
                    request(kept)
                answered += 1
                outage = max(outage, time.monotonic() - last)
                last = time.monotonic()
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                failed += 1
                errors.append(f"{type(error).__name__}: {error}")
                kept.close()
            if fresh:
                connection.close()
            if answered + failed == 2:
                print("calling", flush=True)
    counts = {"answered": answered, "reopened": reopened, "failed": failed}
    print(json.dumps({**counts, "outage": round(outage, 2), "errors": errors[:5]}))


main()
