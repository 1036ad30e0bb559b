"""A small inference server for tests: writes a cache, warms up in silence, answers /health, and stays.

argv: cache directory, port, JSON with what it does (see DEFAULTS), a tag. Standard library only.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time

DEFAULTS = {
    "write_s": 0.3,  # writes a file each 0.1 s
    "warm_s": 0.3,  # then is silent
    "hang_in_writing": False,  # writes once and then does nothing, for ever
    "exit_in_warmup": None,  # ends with this code in the middle of its warm-up
    "never_ready": False,  # binds no port, for ever
    "status_warming": None,  # answers this while it warms up, once at least
    "hang_health": False,  # takes connections from the start and never answers
    "daemonize": False,  # the first process ends with exit code 0, a child serves
    "workers": 0,  # children that sleep
    "ignore_term": False,
    "print_bytes": 0,  # prints as much after each request
    "marker": None,  # file in the cache directory, written when ready
    "exit_when_ready": None,  # ends with this code right after it has said that it is ready
}


def main() -> None:
    directory, port, plan = sys.argv[1], int(sys.argv[2]), DEFAULTS | json.loads(sys.argv[3])
    if plan["daemonize"] and os.fork():
        os._exit(0)
    if plan["ignore_term"]:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("loading the model", flush=True)
    if plan["hang_health"]:
        deaf = socket.create_server(("127.0.0.1", port))
        plan["never_ready"] = deaf is not None
    workers = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[4]])
        for _ in range(plan["workers"])
    ]
    end_s, number = time.monotonic() + plan["write_s"], 0
    while time.monotonic() < end_s:
        with open(f"{directory}/layer{number}.bin", "wb") as file:
            file.write(os.urandom(65536))
        number += 1
        time.sleep(0.1)
    if plan["hang_in_writing"]:
        time.sleep(600)
    print("warming up", flush=True)
    state, asked = {"status": plan["status_warming"]}, threading.Event()

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(state["status"] or 200)
            self.end_headers()
            asked.set()
            sys.stdout.write("x" * plan["print_bytes"])
            sys.stdout.flush()

        def log_message(self, *_: object) -> None:
            return

    server = None
    if state["status"] is not None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked.wait(60)
    time.sleep(plan["warm_s"])
    if plan["exit_in_warmup"] is not None:
        print("RuntimeError: device 3 does not answer", flush=True)
        os._exit(plan["exit_in_warmup"])
    if plan["never_ready"]:
        time.sleep(600)
    state["status"] = None
    if plan["marker"]:
        with open(f"{directory}/{plan['marker']}", "w") as file:
            file.write("done")
    print("startup complete", flush=True)
    if plan["exit_when_ready"] is not None:
        os._exit(plan["exit_when_ready"])
    if server is None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
        server.serve_forever()
    for worker in workers:
        worker.wait()
    threading.Event().wait()


main()
