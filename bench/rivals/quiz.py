"""Facts and questions of an invented memory (`inferscale eval accuracy --print`), padded with other
people's facts, and the grade of an answer, by the rule of src/eval/grade.h."""
import json
import re
import subprocess

import snowballstemmer

NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve").split()
STEMMER = snowballstemmer.stemmer("porter")


class Quiz:
    """facts: [{"text", "event_time"}], the oldest first. questions: [{"type", "question",
    "answers", "choices", "right", "facts"}], `facts` being the indices of those that give the
    answer."""

    def __init__(self, facts, questions):
        self.facts, self.questions = facts, questions


def first_word(text):
    return re.split(r"[^A-Za-z]", text, maxsplit=1)[0]


def people(facts, small):
    """Names: words that begin a fact and are never written small."""
    return {w for w in (first_word(f["text"]) for f in facts) if w.lower() not in small}


def load(binary, seed, n_facts):
    """The questions of the seed's first memory. Its facts, and as many as are missing from the
    seed's other memories, of people that the first does not know, so that no answer changes."""
    n_memories = 3 + n_facts // 60
    out = subprocess.run([binary, "eval", "accuracy", "--seed", str(seed), "--print",
                          str(120 * n_memories), "--json"], check=True, capture_output=True)
    memories = json.loads(out.stdout)["memories"]
    small = {w for m in memories for f in m["facts"] for w in re.findall(r"\b[a-z]+\b", f["text"])}
    known = people(memories[0]["facts"], small)
    facts = [dict(f, index=i) for i, f in enumerate(memories[0]["facts"])]
    texts = {f["text"] for f in facts}
    for f in (f for m in memories[1:] for f in m["facts"]):
        if len(facts) >= n_facts:
            break
        if f["text"] not in texts and not known & set(re.findall(r"[A-Z][a-z]+", f["text"])):
            texts.add(f["text"])
            facts.append(dict(f, index=None))
    if len(facts) < n_facts:
        raise SystemExit("seed %d has only %d facts that fit; ask for fewer" % (seed, len(facts)))
    facts = sorted(facts[:max(n_facts, len(memories[0]["facts"]))], key=lambda f: f["event_time"])
    place = {f["index"]: i for i, f in enumerate(facts) if f["index"] is not None}
    questions = [dict(q, facts=[place[i] for i in q["facts"]]) for q in memories[0]["questions"]]
    return Quiz(facts, questions)


def words(text):
    """Small letters, stems; punctuation parts words but for the apostrophe; 3 is three."""
    text = text.translate({ord(c): ord(c) | 32 for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
    parts = re.sub(r"[!-&(-/:-@\[-`{-~\t-\r ]+", " ", text.replace("'", "")).split(" ")
    plain = [NUMBERS[int(w)] if re.fullmatch(r"\d|1[0-2]", w) else w for w in parts if w]
    return STEMMER.stemWords(plain)


def find(within, what):
    """Where the words of `what` stand together first; len(within) = nowhere."""
    n = len(what)
    return next((i for i in range(len(within) - n + 1) if n and within[i:i + n] == what),
                len(within))


def is_right(question, answer):
    """Names the right answer, and no wrong choice before it."""
    said = words(answer)
    best = min(find(said, words(a)) for a in question["answers"])
    return best < len(said) and all(
        find(said, words(c)) >= best
        for i, c in enumerate(question["choices"]) if i != question["right"])
