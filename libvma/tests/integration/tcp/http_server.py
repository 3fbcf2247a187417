"""Python's http.server as it is, and PUT.

usage: http_server.py <address> <port>      serves and stores files of the current directory
"""
import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        with open(os.path.basename(self.path), "wb") as file:
            while left:
                part = self.rfile.read(min(left, 1 << 20))
                if not part:
                    raise EOFError(f"{left} bytes are missing")
                file.write(part)
                left -= len(part)
        answer = b"stored " + self.headers["Content-Length"].encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.serve_forever()
