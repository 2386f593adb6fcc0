"""A recording proxy between the gateway and a vLLM: what is sent can be read, and what is behind the address can go away and be exchanged."""
import http.client
import http.server
import threading
import urllib.parse


class Tap(http.server.ThreadingHTTPServer):
    """Passes everything on as it comes and keeps the bodies of requests."""
    daemon_threads = True

    def __init__(self, url, port=0):
        super().__init__(("127.0.0.1", port), Pass)
        self.target, self.bodies = urllib.parse.urlsplit(url), []
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        """Nothing listens there any more; another Tap may take the port."""
        self.shutdown()
        self.server_close()


class Pass(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def go(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.bodies.append(body.decode("utf-8", "replace"))
        link = http.client.HTTPConnection(self.server.target.hostname, self.server.target.port, timeout=600)
        link.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "expect")})
        answer = link.getresponse()
        self.send_response(answer.status)
        for k, v in answer.getheaders():
            if k.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(k, v)
        self.end_headers()  # HTTP/1.0: the end of the connection is the end of the body
        try:
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
        except OSError:
            pass  # the gateway hung up; so does this
        link.close()

    do_GET = do_POST = go
