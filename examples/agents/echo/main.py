"""An agent that answers with what it was told, and counts: its session keeps the count.

hekla agent pack examples/agents/echo && hekla agent publish echo-0.0.1.agent.tar.gz
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GREETING = os.environ.get("GREETING", "echo")


class Echo(BaseHTTPRequestHandler):
    """`POST` anything."""

    protocol_version = "HTTP/1.1"
    turns = 0

    def do_GET(self) -> None:
        """Whether it is there, and how often it was asked."""
        self._say({"turns": Echo.turns})

    def do_POST(self) -> None:
        """The next turn of the conversation."""
        Echo.turns += 1
        told = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self._say({"answer": f"{GREETING}: {told}", "turns": Echo.turns})

    def _say(self, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", f"{len(body)}")
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Echo).serve_forever()
