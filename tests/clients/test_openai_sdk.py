"""The openai package against the server: what its users do, as they do it."""
import asyncio
import datetime
import json
import math
import time
import urllib.request
from typing import List, Literal, Optional

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tap import URL, case, finish

MODEL = "smollm2-135m-instruct-q4_0"
EMBEDDER = "all-minilm-l6-v2-f16"
client = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)


def call(method, path, body=None):
    request = urllib.request.Request(URL + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def remember(user, text):
    call("POST", "/memories", {"messages": [{"role": "user", "content": text}], "user_id": user, "infer": False,
         "timestamp": "2026-11-30"})


def ask(text, **more):
    more.setdefault("max_tokens", 24)
    more.setdefault("temperature", 0)
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **more)


def raises(kind, function, **expected):
    try:
        function()
    except kind as error:
        assert type(error) is kind, type(error)
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), error)
        return error
    raise AssertionError("no %s was raised" % kind.__name__)


@case("models are listed and shown, an unknown one is NotFoundError")
def _():
    names = [m.id for m in client.models.list()]
    assert names == [MODEL, EMBEDDER], names
    shown = client.models.retrieve(MODEL)
    assert shown.id == MODEL and shown.object == "model" and shown.created > 1_700_000_000 and shown.owned_by
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-4o"), code="model_not_found", status_code=404)
    raises(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}]),
           code="model_not_found", param="model", type="invalid_request_error")


@case("a chat answer has the SDK's shape, and a request id")
def _():
    before = int(time.time())
    a = ask("What is the capital of France?")
    assert a.object == "chat.completion" and a.id.startswith("chatcmpl-") and before <= a.created <= time.time() and a.model == MODEL
    assert len(a.choices) == 1 and a.choices[0].index == 0 and a.choices[0].finish_reason in ("stop", "length")
    assert a.choices[0].message.role == "assistant" and "Paris" in a.choices[0].message.content, a.choices[0].message.content
    assert a.usage.completion_tokens > 0 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a.usage.prompt_tokens_details.cached_tokens <= a.usage.prompt_tokens
    assert a.memory["mode"] == "none" and a.memory["facts"] == []
    assert a._request_id


@case("a stream tells the same as the whole answer, in order, with usage when asked")
def _():
    whole = ask("Name three colours.")
    chunks = list(ask("Name three colours.", stream=True, stream_options={"include_usage": True}))
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-2].memory["timings"]["total_ms"] > 0 and "facts" in chunks[0].memory
    assert all(c.choices for c in ask("Hi", stream=True)), "a usage chunk nobody asked for"


@case("memory in extra_body: facts of this user are found, injected, counted; other users' are not")
def _():
    remember("sdk-anna", "Anna's cat is called Mitzi.")
    remember("sdk-anna", "Anna works at the harbour of Hamburg.")
    remember("sdk-ben", "Ben's dog is called Rex.")
    for _ in range(300):  # until what was remembered has its keys and values
        a = ask("What is the name of Anna's cat?", extra_body={"memory": {"user_id": "sdk-anna", "k": 2}})
        if a.memory["tokens"]["injected"]:
            break
        time.sleep(0.2)
    m = a.memory
    assert m["asked"] == m["mode"] == "kv" and m["header"] == "exact", m
    assert {f["source"] for f in m["facts"]} <= {"stored", "computed"} and len(m["facts"]) == 2, m
    assert all(isinstance(f["id"], str) and isinstance(f["score"], float) and f["tokens"] > 0 for f in m["facts"])
    assert m["tokens"]["injected"] > 0 and a.usage.prompt_tokens == m["tokens"]["prompt"]
    assert a.usage.prompt_tokens_details.cached_tokens == m["tokens"]["injected"] + m["tokens"]["resident"]
    assert m["tokens"]["prompt"] == m["tokens"]["computed"] + m["tokens"]["injected"] + m["tokens"]["resident"]
    assert "Mitzi" in a.choices[0].message.content, a.choices[0].message.content
    ben = ask("What is the name of the pet?", extra_body={"memory": {"user_id": "sdk-ben"}})
    ids = {f["id"] for f in m["facts"]}
    assert len(ben.memory["facts"]) == 1 and ben.memory["facts"][0]["id"] not in ids
    nobody = ask("What is the name of Anna's cat?", extra_body={"memory": {"user_id": "sdk-nobody"}})
    assert nobody.memory["facts"] == [] and "nothing is remembered" in nobody.memory["fallback"]


@case("memory by header, as text, by ids, off; one memory for n answers")
def _():
    a = ask("Where does Anna work?", extra_headers={"X-Inferscale-User": "sdk-anna"})
    assert len(a.memory["facts"]) == 2
    text = ask("Where does Anna work?", extra_body={"memory": {"user_id": "sdk-anna", "mode": "text"}})
    assert text.memory["mode"] == "text" and text.memory["tokens"]["injected"] == 0
    one = a.memory["facts"][0]["id"]
    only = ask("Where does Anna work?", extra_body={"memory": {"user_id": "sdk-anna", "ids": [one]}})
    assert [f["id"] for f in only.memory["facts"]] == [one]
    none = ask("Where does Anna work?", extra_body={"memory": {"user_id": "sdk-anna", "mode": "none"}})
    assert none.memory["mode"] == "none" and none.memory["facts"] == []
    many = ask("Where does Anna work?", n=3, temperature=1, seed=5, extra_body={"memory": {"user_id": "sdk-anna"}})
    assert [c.index for c in many.choices] == [0, 1, 2] and len(many.memory["facts"]) == 2
    error = raises(openai.BadRequestError, lambda: ask("x", extra_body={"memory": {"user_id": "sdk-anna", "kk": 2}}), param="memory.kk")
    assert "memory.kk" in error.message
    raises(openai.BadRequestError, lambda: ask("x", extra_body={"memory": {"k": 2}}), param="memory.user_id")
    raises(openai.NotFoundError, lambda: ask("x", extra_body={"memory": {"user_id": "sdk-ben", "ids": [one]}}), param="memory.ids")


@case("a conversation that is sent again goes on where it was")
def _():
    messages = [{"role": "user", "content": "Where does Anna work?"}]
    memory = {"memory": {"user_id": "sdk-anna"}}
    first = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=16, extra_body=memory)
    messages += [first.choices[0].message, {"role": "user", "content": "And what is her cat called?"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=16, extra_body=memory)
    assert second.memory["placed"]["kept"] == 1 and second.memory["placed"]["lost"] == 0, second.memory
    assert second.memory["tokens"]["resident"] >= first.usage.prompt_tokens, (first.memory, second.memory)


@case("stop, seed, logit_bias, logprobs, n")
def _():
    stopped = ask("Count: one two three four", stop=["two", "2"], max_tokens=40)
    assert "two" not in stopped.choices[0].message.content and "2" not in stopped.choices[0].message.content
    # One seed gives one answer only where the same rows are in the cache (docs/server.md); another seed gives another answer.
    assert len({ask("Tell me a story.", temperature=1.2, seed=s).choices[0].message.content for s in (7, 8, 9)}) == 3
    lp = ask("Hello", logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(lp) == 4
    for t in lp:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3 and bytes(t.bytes).decode("utf-8", "replace")
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob and math.isclose(t.top_logprobs[0].logprob, t.logprob)
    streamed = [t for chunk in ask("Hello", logprobs=True, top_logprobs=3, max_tokens=4, stream=True) if chunk.choices[0].logprobs
                for t in chunk.choices[0].logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in lp]
    ids = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=1, temperature=0, logprobs=1)
    assert ids.choices[0].logprobs.tokens == [ids.choices[0].text] and ids.choices[0].logprobs.text_offset == [0]
    two = ask("Say a word.", n=2, temperature=1.5, seed=1, stream=True, max_tokens=8)
    texts = {0: "", 1: ""}
    for chunk in two:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts[0] and texts[1]


class Toy(BaseModel):
    what: str = Field(max_length=12)
    price: float = Field(ge=0, le=20)


class Pet(BaseModel):
    name: str = Field(max_length=12)
    kind: Literal["cat", "dog", "bird"]
    age: Optional[int] = Field(ge=0, lt=30)
    born: datetime.date
    toys: List[Toy] = Field(min_length=1, max_length=2)


@case("structured output: parse() gives objects of the caller's class")
def _():
    for seed in range(4):
        a = client.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": "Describe a cat named Tom as JSON."}],
                                          response_format=Pet, temperature=1, seed=seed, max_tokens=400)
        assert isinstance(a.choices[0].message.parsed, Pet), a.choices[0]
    free = ask("A JSON object with a name.", response_format={"type": "json_object"}, max_tokens=400, seed=3, temperature=0.7)
    if free.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(free.choices[0].message.content), dict)
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "^a"}}}
    error = raises(openai.BadRequestError, lambda: ask("x", response_format=bad), param="response_format.json_schema.schema.pattern")
    assert "not supported" in error.message


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}}]


@case("forced calls of functions, whole and streamed, and the conversation after them")
def _():
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    a = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=100)
    tool_call = a.choices[0].message.tool_calls[0]
    assert a.choices[0].finish_reason == "tool_calls" and a.choices[0].message.content is None
    assert tool_call.function.name == "get_weather" and set(json.loads(tool_call.function.arguments)) == {"city", "unit"}
    name, arguments, finish_reason = None, "", None
    named = {"type": "function", "function": {"name": "get_weather"}}
    for chunk in client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, tool_choice=named, temperature=0,
                                                max_tokens=100, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            name = name or part.function.name
            arguments += part.function.arguments or ""
        finish_reason = finish_reason or chunk.choices[0].finish_reason
    assert name == "get_weather" and arguments == tool_call.function.arguments and finish_reason == "stop", (name, arguments)
    messages += [a.choices[0].message, {"role": "tool", "tool_call_id": tool_call.id, "content": "21 degrees, sunny"}]
    after = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=30)
    assert after.choices[0].message.content
    raises(openai.BadRequestError, lambda: ask("x", tools=TOOLS), param="tool_choice", code="unsupported")


@case("completions: text, echo, several prompts, a stream")
def _():
    a = client.completions.create(model=MODEL, prompt=["The sky is", "Grass is"], temperature=0, max_tokens=4, echo=True)
    assert [c.index for c in a.choices] == [0, 1] and a.choices[0].text.startswith("The sky is") and a.choices[1].text.startswith("Grass is")
    whole = client.completions.create(model=MODEL, prompt="The sky is", temperature=0, max_tokens=8)
    parts = list(client.completions.create(model=MODEL, prompt="The sky is", temperature=0, max_tokens=8, stream=True))
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
    assert whole.usage.completion_tokens <= 8 and whole.object == "text_completion"
    raises(openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt="a", suffix="b"), param="suffix")
    raises(openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt=[1, 2]), param="prompt")


@case("embeddings: base64 (the SDK's default) and floats agree, are of unit length, and mean something")
def _():
    texts = ["a cat sleeps on the sofa", "a kitten naps on the couch", "the stock market fell"]
    a = client.embeddings.create(model=EMBEDDER, input=texts)
    b = client.embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
    va, vb = [d.embedding for d in a.data], [d.embedding for d in b.data]
    assert [d.index for d in a.data] == [0, 1, 2] and len(va[0]) == 384 and a.usage.prompt_tokens > 0
    for x, y in zip(va, vb):
        assert max(abs(p - q) for p, q in zip(x, y)) < 1e-6 and abs(sum(p * p for p in x) - 1) < 1e-4
    dot = lambda x, y: sum(p * q for p, q in zip(x, y))
    assert dot(va[0], va[1]) > dot(va[0], va[2]) + 0.2
    assert len(client.embeddings.create(model=EMBEDDER, input="one", dimensions=384).data) == 1
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=EMBEDDER, input="one", dimensions=8), param="dimensions")
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=EMBEDDER, input=["a", " "]), param="input")
    raises(openai.NotFoundError, lambda: client.embeddings.create(model="text-embedding-3-small", input="a"), code="model_not_found")


@case("errors are the SDK's classes, with param and code")
def _():
    raises(openai.BadRequestError, lambda: ask("x", temperature=9), param="temperature", status_code=400, type="invalid_request_error")
    raises(openai.BadRequestError, lambda: ask("x", extra_body={"nonsense": 1}), param="nonsense", code="unknown_parameter")
    raises(openai.BadRequestError, lambda: ask("", max_tokens=4), param="messages[0].content")
    raises(openai.BadRequestError, lambda: ask("x", reasoning_effort="high"), param="reasoning_effort", code="unsupported")
    long = raises(openai.BadRequestError, lambda: ask("word " * 20000), code="context_length_exceeded", param="messages")
    assert "context" in long.message
    raises(openai.BadRequestError, lambda: ask("word " * 20000, stream=True), code="context_length_exceeded")
    raises(openai.NotFoundError, lambda: client.responses.create(model=MODEL, input="x"))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=image), param="messages[0].content[0]")


@case("the async client: many users at once, nobody gets another one's facts")
def _():
    names = {"sdk-u%d" % i: word for i, word in enumerate(["amber", "basil", "cobalt", "dahlia", "ebony", "fern"])}
    for user, word in names.items():
        remember(user, "My secret word is %s." % word)

    async def one(aclient, user, stream):
        a = await aclient.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "What is my secret word?"}], stream=stream,
                                                  temperature=0, max_tokens=16, extra_body={"memory": {"user_id": user}})
        if not stream:
            return user, a.choices[0].message.content, a.memory
        text, memory = "", None
        async for chunk in a:
            text += chunk.choices[0].delta.content or ""
            memory = getattr(chunk, "memory", None) or memory
        return user, text, memory

    async def all_of_them():
        async with AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120) as aclient:
            return await asyncio.gather(*(one(aclient, u, s) for u in names for s in (False, True)))

    seen = {}
    for user, text, memory in asyncio.run(all_of_them()):
        assert len(memory["facts"]) == 1, memory
        assert seen.setdefault(user, memory["facts"][0]["id"]) == memory["facts"][0]["id"]
        for other, word in names.items():
            assert other == user or word not in text.lower(), (user, text)
    assert len(set(seen.values())) == len(names)


def running():
    for line in call("GET", "/metrics").splitlines():
        if line.startswith("inferscale_requests_running"):
            return float(line.split()[-1])
    raise AssertionError("no inferscale_requests_running")


@case("a stream that is closed early ends its generation")
def _():
    stream = ask("Tell me a very long story.", stream=True, max_tokens=4000, extra_body={"logit_bias": {"2": -100, "0": -100}})
    next(iter(stream))
    assert running() >= 1
    stream.close()
    for _ in range(100):
        if running() == 0:
            break
        time.sleep(0.1)
    assert running() == 0
    with ask("Hi", stream=True, max_tokens=4) as again:
        assert list(again)


finish()
