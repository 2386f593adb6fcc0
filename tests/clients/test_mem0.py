"""mem0ai's own MemoryClient against this server: what it adds it finds, lists, changes, traces and deletes; what is not served is refused in
a sentence. Nothing is sent anywhere else: its telemetry is off, its settings are in a folder of their own."""
import asyncio
import logging
import os
import tempfile
import time

os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = tempfile.mkdtemp()

logging.disable(logging.ERROR)  # the client prints what is refused on purpose

from mem0 import AsyncMemoryClient, MemoryClient  # noqa: E402  (after the variables it reads)
from mem0.exceptions import MemoryError as Mem0Error, MemoryNotFoundError  # noqa: E402

from tap import URL, case, finish  # noqa: E402

ANNA, BEN = "mem0-anna", "mem0-ben"
client = MemoryClient(api_key="not-looked-at-without-a-keys-file", host=URL)
ids = {}


def texts(answer):
    return [m["memory"] for m in answer["results"]]


def settled(user):
    """Until every memory of the user has its vector: before that it is found by its words."""
    for _ in range(600):
        if client.search("anything", filters={"user_id": user})["words_only"] == 0:
            return
        time.sleep(0.1)
    raise AssertionError("the background encoder did not come to an end")


def refused(call, kind=Exception):
    try:
        call()
    except kind as e:
        return str(e)
    raise AssertionError("this should have been refused")


@case("add: each message but the system's becomes a memory, with its date, its speaker and its metadata")
def _():
    r = client.add([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "I am allergic to peanuts."},
                    {"role": "assistant", "content": "I will keep peanuts out of your recipes."}],
                   user_id=ANNA, metadata={"topic": "food"}, timestamp=1714521600)
    assert [m["event"] for m in r["results"]] == ["ADD", "ADD"], r
    ids["peanuts"], ids["recipes"] = [m["id"] for m in r["results"]]
    m = client.get(ids["peanuts"])
    assert m["memory"] == "I am allergic to peanuts." and m["user_id"] == ANNA and m["metadata"] == {"topic": "food"}, m
    assert m["role"] == "user" and m["created_at"] == "2024-05-01T00:00:00Z", m


@case("add: a string; the same text again is NONE and the same memory; filters may name the owner")
def _():
    a = client.add("My sister Eva lives in Graz.", user_id=ANNA)["results"][0]
    b = client.add("My sister Eva lives in Graz.", filters={"user_id": ANNA})["results"][0]
    assert a["event"] == "ADD" and b["event"] == "NONE" and a["id"] == b["id"], (a, b)
    ids["eva"] = a["id"]
    client.add("Ben collects stamps.", user_id=BEN)


@case("search: the best first, with scores, of this user only")
def _():
    assert texts(client.search("peanuts", filters={"user_id": ANNA})), "found by its words at once"
    settled(ANNA)
    r = client.search("Which food must I avoid because of an allergy?", filters={"user_id": ANNA}, top_k=3)
    assert texts(r)[0] == "I am allergic to peanuts.", r
    assert all(0 <= m["score"] <= 1 and m["user_id"] == ANNA for m in r["results"]), r
    assert "Ben collects stamps." not in texts(client.search("stamps", filters={"user_id": ANNA}))
    assert texts(client.search("stamps", filters={"user_id": "mem0-nobody"})) == []


@case("search: AND, metadata and created_at narrow; what cannot be honoured is refused by its name")
def _():
    narrow = {"AND": [{"user_id": ANNA}, {"topic": "food"}, {"created_at": {"gte": "2024-04-30", "lte": "2024-05-01"}}]}
    assert set(texts(client.search("peanuts", filters=narrow))) == {"I am allergic to peanuts.", "I will keep peanuts out of your recipes."}
    assert texts(client.search("peanuts", filters={"user_id": ANNA, "topic": "sport"})) == []
    for filters, word in (({"OR": [{"user_id": ANNA}, {"user_id": BEN}]}, "OR"), ({"user_id": ANNA, "topic": {"ne": "food"}}, "topic"),
                          ({"user_id": ANNA, "categories": {"in": ["a"]}}, "categories"), ({"user_id": "*"}, "user_id")):
        assert word in refused(lambda: client.search("x", filters=filters)), filters
    assert "identifier" in refused(lambda: client.search("x"))
    assert "rerank" in refused(lambda: client.search("x", filters={"user_id": ANNA}, rerank=True))


@case("get_all: pages")
def _():
    r = client.get_all(filters={"user_id": ANNA})
    assert r["count"] == 3 and len(r["results"]) == 3 and r["next"] is None, r
    one = client.get_all(filters={"user_id": ANNA}, page=2, page_size=2)
    assert one["count"] == 3 and texts(one) == ["My sister Eva lives in Graz."] and one["previous"] and not one["next"], one
    assert "filters" not in refused(lambda: client.get_all())


@case("update and history: a new text is a new version, metadata is merged, the date stays")
def _():
    client.update(ids["eva"], text="My sister Eva lives in Vienna.", metadata={"checked": True})
    m = client.get(ids["eva"])
    assert m["memory"] == "My sister Eva lives in Vienna." and m["metadata"]["checked"] is True, m
    h = client.history(ids["eva"])
    assert [x["event"] for x in h] == ["ADD", "UPDATE"] and h[1]["old_memory"] == "My sister Eva lives in Graz.", h
    assert h[1]["created_at"] == h[0]["created_at"]
    assert "My sister Eva lives in Graz." not in texts(client.search("Where does Eva live?", filters={"user_id": ANNA}))


@case("expiration_date: its last day counts; it can be taken off")
def _():
    past = client.add("The parcel comes today.", user_id=ANNA, expiration_date="2020-01-01")["results"][0]["id"]
    assert "The parcel comes today." not in texts(client.get_all(filters={"user_id": ANNA}))
    assert "The parcel comes today." in texts(client.get_all(filters={"user_id": ANNA}, show_expired=True))
    client.update(past, expiration_date="2999-12-31")
    assert client.get(past)["expiration_date"] == "2999-12-31"
    client.update(past, expiration_date=None)
    assert "expiration_date" not in client.get(past)
    client.delete(past)


@case("batches: changed and deleted together")
def _():
    a, b = [client.add("Batch number %d." % i, user_id=ANNA)["results"][0]["id"] for i in (1, 2)]
    client.batch_update([{"memory_id": a, "text": "Batch number one."}, {"memory_id": b, "metadata": {"n": 2}}])
    assert client.get(a)["memory"] == "Batch number one." and client.get(b)["metadata"]["n"] == 2
    refused(lambda: client.batch_delete([{"memory_id": a}, {"memory_id": "999999999"}]))
    assert client.get(a), "a batch with an id that is none does nothing"
    client.batch_delete([{"memory_id": a}, {"memory_id": b}])
    refused(lambda: client.get(a), MemoryNotFoundError)


@case("delete: gone from get, search, list and history")
def _():
    client.delete(ids["peanuts"])
    refused(lambda: client.get(ids["peanuts"]), MemoryNotFoundError)
    refused(lambda: client.history(ids["peanuts"]), MemoryNotFoundError)
    refused(lambda: client.delete(ids["peanuts"]), MemoryNotFoundError)
    assert "I am allergic to peanuts." not in texts(client.search("peanut allergy", filters={"user_id": ANNA}))
    assert "I am allergic to peanuts." not in texts(client.get_all(filters={"user_id": ANNA}))


@case("ids that are none are not found")
def _():
    for wrong in ("0", "-1", "abc", "1.5", "99999999999999999999", "a/b", "%00", "1 OR 1=1"):
        refused(lambda: client.get(wrong), Mem0Error)


@case("users, delete_all and delete_users: of one owner; a call without a name deletes nothing")
def _():
    names = {u["name"]: u for u in client.users()["results"]}
    assert names[ANNA]["type"] == "user" and names[BEN]["total_memories"] == 1, names
    assert "identifier" in refused(lambda: client.delete_all())
    client.delete_all(user_id=ANNA)
    assert client.get_all(filters={"user_id": ANNA})["count"] == 0 and client.get_all(filters={"user_id": BEN})["count"] == 1
    client.delete_users(user_id=BEN)
    assert client.get_all(filters={"user_id": BEN})["count"] == 0
    refused(lambda: client.delete_users(user_id=BEN), MemoryNotFoundError)


@case("what only the platform has is refused in a sentence")
def _():
    for call in (lambda: client.create_memory_export(schema="{}"), lambda: client.get_summary(), lambda: client.feedback("1", "POSITIVE"),
                 lambda: client.get_profile(ANNA), lambda: client.get_profile_settings(), lambda: client.get_webhooks("1")):
        assert "not served here" in refused(call)
    assert "custom_instructions" in refused(lambda: client.add("Infer this.", user_id=ANNA, custom_instructions="Be brief."))


@case("infer: what a model extracts is an event each, and remembered if it is an ADD; what it says that cannot be checked is not")
def _():
    r = client.add([{"role": "user", "content": "I moved to Graz last week."}], user_id="mem0-infer", infer=True, timestamp=1714521600)
    added = [m for m in r["results"] if m["event"] == "ADD"]
    assert all(m["event"] in ("ADD", "UPDATE", "DELETE", "NOOP") for m in r["results"]), r
    assert len(client.get_all(filters={"user_id": "mem0-infer"})["results"]) == len(added), r
    client.delete_all(user_id="mem0-infer")


@case("the asynchronous client, fifty at a time: no memory is lost or another's")
def _():
    async def run():
        c = AsyncMemoryClient(api_key="any", host=URL)
        users = ["mem0-async-%d" % i for i in range(50)]
        await asyncio.gather(*(c.add("The number of %s is %d." % (u, i), user_id=u) for i, u in enumerate(users)))
        found = await asyncio.gather(*(c.search("What is the number?", filters={"user_id": u}) for u in users))
        for i, u in enumerate(users):
            assert texts(found[i]) == ["The number of %s is %d." % (u, i)], found[i]
        await asyncio.gather(*(c.delete_all(user_id=u) for u in users))
    asyncio.run(run())


finish()
