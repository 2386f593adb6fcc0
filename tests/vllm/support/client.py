"""vLLM's HTTP interface as the tests need it: prompts as token ids, log-probabilities of the whole vocabulary."""
import http.client
import json
import urllib.parse

import numpy


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(self, status, body):
        super().__init__("status %d: %s" % (status, body[:2000]))
        self.status, self.body = status, body


class Client:
    def __init__(self, url, seconds=300, headers=None):
        self.url, self.seconds, self.headers = urllib.parse.urlsplit(url), seconds, dict(headers or {})

    def open(self, method, path, body=None, headers=None):
        """The connection and the answer, not read yet."""
        link = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.seconds)
        data = None if body is None else json.dumps(body).encode()
        link.request(method, path, data, dict({"Content-Type": "application/json"}, **self.headers, **(headers or {})))
        return link, link.getresponse()

    def request(self, method, path, body=None, headers=None):
        link, answer = self.open(method, path, body, headers)
        try:
            text = answer.read().decode("utf-8", "replace")
        finally:
            link.close()
        if answer.status != 200:
            raise Refused(answer.status, text)
        return text

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, headers=None):
        return json.loads(self.request("POST", path, body, headers))

    def model(self):
        return json.loads(self.get("/v1/models"))["data"][0]["id"]

    def complete(self, prompt, max_tokens=1, **more):
        """/v1/completions, greedy unless more says otherwise; prompt: text or token ids."""
        return self.post("/v1/completions", dict({"model": self.model(), "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                                                  "return_token_ids": True}, **more))

    def next_logprobs(self, prompt, max_tokens=1, **more):
        """[max_tokens][vocabulary] log-probabilities of what follows the prompt, and the answer."""
        answer = self.complete(prompt, max_tokens, logprobs=-1, return_tokens_as_token_ids=True, **more)
        rows = answer["choices"][0]["logprobs"]["top_logprobs"]
        return numpy.stack([row({int(k[len("token_id:"):]): v for k, v in r.items()}) for r in rows]), answer

    def prompt_logprobs(self, prompt, **more):
        """[tokens - 1][vocabulary]: row i is of the token behind prompt[:i + 1]. vLLM computes the whole prompt for it: nothing cached or
        injected is used."""
        answer = self.complete(prompt, prompt_logprobs=-1, **more)
        rows = answer["choices"][0].get("prompt_logprobs") or answer["prompt_logprobs"]
        return numpy.stack([row({int(k): v["logprob"] for k, v in r.items()}) for r in rows[1:]])

    def metrics(self):
        """{name{labels}: value} of /metrics."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def counted(self, name, **labels):
        """The sum of a metric over all label sets that hold these labels."""
        wanted = ['%s="%s"' % item for item in labels.items()]
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name and all(w in k for w in wanted))

    def stream(self, path, body, headers=None):
        """The events of a streaming answer, decoded; ends behind [DONE]."""
        link, answer = self.open("POST", path, dict(body, stream=True), headers)
        try:
            if answer.status != 200:
                raise Refused(answer.status, answer.read().decode("utf-8", "replace"))
            for line in answer:
                if line.startswith(b"data: "):
                    if line.strip() == b"data: [DONE]":
                        return
                    yield json.loads(line[6:])
            raise EOFError("the stream ended without [DONE]")
        finally:
            link.close()


def row(by_token):
    """One distribution; it must be of the whole vocabulary, ids 0 to n - 1."""
    values = numpy.full(len(by_token), numpy.nan)
    for token, value in by_token.items():
        if token >= len(values):
            raise ValueError("the answer's log-probabilities are not those of the whole vocabulary (%d of them, one of token %d)" %
                             (len(values), token))
        values[token] = value
    return values
