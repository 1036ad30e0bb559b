"""Writes where a server of tt-inference-server writes: weights, kernels, tensors; then answers /health, or hangs with HANG set."""

import http.server
import os
import sys
import time
from pathlib import Path

places = [Path(os.environ["CACHE_ROOT"], "weights", os.environ["MODEL"]), Path(os.environ["TT_CACHE_PATH"])]
places += [Path(os.environ["TT_METAL_CACHE"])] if "TT_METAL_CACHE" in os.environ else []
for place in places:
    place.mkdir(parents=True, exist_ok=True)
    (place / "0.tensorbin").write_bytes(bytes(20_000))
if "HANG" in os.environ:
    time.sleep(600)


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
