"""What each rival's prompt looks like, as messages. Facts come best first and are dated: without
dates nobody could answer questions about time."""
import datetime
import json

SYSTEM = "You are a helpful assistant."


def date(fact):
    d = datetime.date.fromisoformat(fact["event_time"][:10])
    return "%d %s" % (d.day, d.strftime("%B %Y"))


def lines(facts):
    return "\n".join("- %s: %s" % (date(f), f["text"]) for f in facts)


def chat(system, question):
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def ours(facts, question):
    """The prompt of `inferscale serve`, for a prefix cache; the facts in the order given."""
    return chat("%s\n\nWhat you remember:\n%s" % (SYSTEM, lines(facts)), question)


def mem0(facts, question):
    """As Mem0's quick start has it: what was found is listed in the system message."""
    return chat("You are a helpful AI. Answer the question based on the query and the memories.\n"
                "User memories:\n%s" % lines(facts), question)


def letta(facts, question, names, n_facts):
    """Letta's form: blocks of core memory in the system message, then the agent's search of its
    archive and what that gave. The call that writes the search is not made."""
    blocks = (
        "You are a helpful assistant with a memory of your own. Core memory is always before you; "
        "what does not fit is in archival memory and must be searched.\n\n"
        "<memory_blocks>\n"
        "<persona>\n<description>Who you are.</description>\n<value>\n"
        "I answer questions about people from what I was told.\n</value>\n</persona>\n"
        "<human>\n<description>Whom you talk to and what matters to them.</description>\n"
        "<value>\nThe user talks about these people: %s.\n</value>\n</human>\n"
        "</memory_blocks>\n\n"
        "<memory_metadata>\n- %d memories are in archival memory\n</memory_metadata>"
        % (", ".join(sorted(names)), n_facts))
    call = json.dumps({"name": "archival_memory_search", "arguments": {"query": question}})
    found = json.dumps({"results": [{"timestamp": f["event_time"][:10], "content": f["text"]}
                                    for f in facts]})
    return chat(blocks, question) + [{"role": "assistant", "content": call},
                                     {"role": "user", "content": "Tool result: %s" % found}]


def graphiti(facts, question, names):
    """Graphiti's form: facts with the time in which they hold, then entities with a summary. The
    summary, which a model writes there, is the entity's newest fact here."""
    held = "\n".join("- %s (%s - present)" % (f["text"], f["event_time"][:10]) for f in facts)
    newest = {}
    for f in sorted(facts, key=lambda x: x["event_time"]):
        newest.update({n: f["text"] for n in names if n in f["text"]})
    entities = "\n".join("- %s: %s" % e for e in sorted(newest.items()))
    return chat("%s\n\nFacts and entities that matter to the question.\n\n"
                "# Facts and the time in which they hold: FACT (from - to)\n<FACTS>\n%s\n</FACTS>\n"
                "\n# Entities: NAME: summary\n<ENTITIES>\n%s\n</ENTITIES>"
                % (SYSTEM, held, entities), question)


def keep_prefix(found, earlier):
    """An order of `found` (best last) that begins as one of the `earlier` orders does, for as long
    as possible."""
    best = []
    for order in earlier:
        run = 0
        while run < len(order) and order[run] in found:
            run += 1
        if run > len(best):
            best = order[:run]
    return best + [i for i in reversed(found) if i not in best]
