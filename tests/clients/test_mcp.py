"""The mcp package's own client against `inferscale mcp` (stdio) and POST /mcp (streamable HTTP): the same tools on both, each in the memory of
its own owner; old and new ways to begin; errors that a model can mend."""
import asyncio
import json
import os
import tempfile
import warnings

warnings.simplefilter("ignore")

import httpx2  # noqa: E402  (the transport of the mcp package)
from mcp import Client, ClientSession, StdioServerParameters, stdio_client  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

from tap import URL, case, finish  # noqa: E402

BIN = os.environ["INFERSCALE_BIN"]
home = tempfile.mkdtemp()
TOOLS = ["add_memory", "search_memories", "get_memory", "list_memories", "update_memory", "delete_memory"]


def stdio(user):
    env = {k: v for k, v in os.environ.items() if k.startswith("INFERSCALE_") or k in ("HOME", "PATH", "LD_LIBRARY_PATH")}
    return stdio_client(StdioServerParameters(command=BIN, args=["mcp", "--home", home, "--user", user], env=env), errlog=open(os.devnull, "w"))


def http(user):
    headers = {"X-Inferscale-User": user} if user else {}
    return streamable_http_client(URL + "/mcp", http_client=httpx2.AsyncClient(headers=headers))


async def call(c, tool, **arguments):
    r = await c.call_tool(tool, arguments)
    assert not r.is_error, r
    assert json.loads(r.content[0].text) == r.structured_content
    return r.structured_content


async def fails(c, tool, word, **arguments):
    r = await c.call_tool(tool, arguments)
    assert r.is_error and word in r.content[0].text, r


async def a_life(c, name):
    """Everything once, as a model would."""
    tools = (await c.list_tools()).tools
    assert [t.name for t in tools] == TOOLS
    by = {t.name: t for t in tools}
    assert by["search_memories"].annotations.read_only_hint and not by["add_memory"].annotations.destructive_hint
    assert by["delete_memory"].annotations.destructive_hint and by["add_memory"].input_schema["required"] == ["text"]
    added = (await call(c, "add_memory", text="%s keeps bees in Graz." % name, timestamp="2024-05-01", metadata={"topic": "bees"}))["results"][0]
    assert added["event"] == "ADD"
    assert (await call(c, "add_memory", text="%s keeps bees in Graz." % name))["results"][0] == dict(added, event="NONE")
    found = (await call(c, "search_memories", query="bees", filters={"topic": "bees"}))["results"]
    assert [m["memory"] for m in found] == ["%s keeps bees in Graz." % name] and found[0]["created_at"] == "2024-05-01T00:00:00Z", found
    assert (await call(c, "search_memories", query="bees", filters={"topic": "cars"}))["results"] == []
    await call(c, "update_memory", id=added["id"], text="%s keeps bees in Vienna." % name)
    got = await call(c, "get_memory", id=added["id"])
    assert got["memory"] == "%s keeps bees in Vienna." % name and [h["event"] for h in got["history"]] == ["ADD", "UPDATE"], got
    for i in range(3):
        await call(c, "add_memory", text="%s's number %d." % (name, i))
    page = await call(c, "list_memories", limit=3)
    rest = await call(c, "list_memories", after=page["next"])
    assert len(page["results"]) == 3 and len(rest["results"]) == 1 and rest["next"] is None
    await fails(c, "add_memory", "text")
    await fails(c, "add_memory", "colour", text="x", colour="red")
    await fails(c, "search_memories", "query", query=7)
    await fails(c, "search_memories", "OR", query="x", filters={"OR": [{"a": 1}, {"b": 2}]})
    await fails(c, "search_memories", "owner", query="x", filters={"user_id": "mcp-other"})
    await fails(c, "get_memory", "not found", id="999999999")
    await fails(c, "get_memory", "not found", id="../1")
    try:
        await c.call_tool("rm", {})
        raise SystemError("an unknown tool was called")
    except SystemError:
        raise
    except Exception as e:
        assert "Unknown tool" in str(e), e
    await call(c, "delete_memory", id=added["id"])
    await fails(c, "get_memory", "not found", id=added["id"])
    return added["id"]


def run(make):
    async def inner():
        await asyncio.wait_for(make(), 120)
    asyncio.run(inner())


@case("stdio: the client begins by itself, and uses every tool")
def _():
    async def go():
        async with Client(stdio("mcp-anna")) as c:
            await a_life(c, "Anna")
    run(go)


@case("stdio: what was remembered is there the next time, and not for another user")
def _():
    async def go():
        async with Client(stdio("mcp-anna")) as c:
            assert len((await call(c, "list_memories"))["results"]) == 3
        async with Client(stdio("mcp-ben")) as c:
            assert (await call(c, "list_memories"))["results"] == []
    run(go)


@case("HTTP: the same, by the header's owner")
def _():
    async def go():
        async with Client(http("mcp-anna")) as c:
            await a_life(c, "Anna")
    run(go)


@case("HTTP: the session of the handshake, with our revision")
def _():
    async def go():
        async with http("mcp-carl") as (read, write):
            async with ClientSession(read, write) as s:
                r = await s.initialize()
                assert r.protocol_version == "2025-06-18" and r.server_info.name == "inferscale" and r.instructions, r
                await s.send_ping()
    run(go)


@case("HTTP: another owner sees nothing, nor by a guessed id; without an owner tools say what is missing")
def _():
    async def go():
        async with Client(http("mcp-anna")) as c:
            mine = (await call(c, "list_memories"))["results"]
        async with Client(http("mcp-ben")) as c:
            assert (await call(c, "list_memories"))["results"] == []
            for m in mine:
                await fails(c, "get_memory", "not found", id=m["id"])
                await fails(c, "update_memory", "not found", id=m["id"], text="mine now")
                await fails(c, "delete_memory", "not found", id=m["id"])
        async with Client(http(None)) as c:
            assert len((await c.list_tools()).tools) == 6
            await fails(c, "list_memories", "X-Inferscale-User")
    run(go)


@case("HTTP: twenty clients at once, each with its own memories")
def _():
    async def one(i):
        async with Client(http("mcp-crowd-%d" % i)) as c:
            for n in range(5):
                await call(c, "add_memory", text="Fact %d of client %d." % (n, i))
            got = (await call(c, "list_memories"))["results"]
            assert [m["memory"] for m in got] == ["Fact %d of client %d." % (n, i) for n in range(5)], got

    async def go():
        await asyncio.gather(*(one(i) for i in range(20)))
    run(go)


finish()
