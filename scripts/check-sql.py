#!/usr/bin/env python3
"""Every SQL statement in src/bank must find its rows by an index: a statement that walks a whole table costs every owner what all
owners together remember; one that changes rows and walks a whole partition makes forgetting an owner a matter of squares. The
statements are taken from the preprocessed source (neighbouring string literals are one), the tables from the steps in schema.c, the
plans from SQLite itself (EXPLAIN QUERY PLAN). TAP on stdout; the rule is first tried on statements that break it and on some that
do not."""
import glob
import os
import re
import sqlite3
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', re.S)
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
STATEMENT = re.compile(r"(SELECT|INSERT|UPDATE|DELETE|WITH|REPLACE)\b")

# Statements that are about everything: a piece of their text, and why they may walk it.
WHOLE = [
    ("count(*) FROM partitions", "figures of the store"), ("count(*) FROM items", "figures of the store"),
    ("count(*) FROM embeddings", "figures of the store"), ("count(*) FROM segments", "figures of the store"),
    ("DISTINCT name FROM doomed", "short: files that are being removed or written"),
    ("FROM sqlite_master", "some twenty rows"), ("FROM sqlite_sequence", "a row a table"), ("UPDATE sqlite_sequence", "the same"),
    ("SELECT id FROM home", "one row"), ("SELECT codec FROM home", "the same"), ("UPDATE home", "the same"),
    ("SELECT id FROM partitions LIMIT 1", "one row: can the bank be read"), ("SELECT id FROM items LIMIT 1", "the same"),
    ("SELECT text FROM fact_versions LIMIT 1", "the same"),
    ("SELECT id, epoch, revision FROM partitions", "a short row an owner: the background encoder looks where something changed"),
]
# Writes that walk a partition: a piece of their text, and why they may.
WHOLE_PARTITION = [
    ("DELETE FROM conversations", "few, once a forgetting"),
    ("ORDER BY id DESC LIMIT 1 OFFSET", "from the newest back, at most as many as are kept, one write in 64"),
]
# Files whose subject is the whole store.
WHOLE_FILES = {"src/bank/verify.c": "fsck reads everything", "src/bank/books.c": "so do gc, du and backup",
               "src/bank/copy.c": "figures of the file", "src/bank/scan.c": "the proof of forgetting searches everything"}


def literals(path):
    """The string literals of a C file after the preprocessor, neighbours joined, line markers taken out."""
    out = subprocess.run(["cc", "-E", "-P", "-Iinclude", "-Isrc", "-D_GNU_SOURCE", path], cwd=ROOT, capture_output=True, check=True)
    for match in STRINGS.finditer(out.stdout.decode()):
        pieces = STRING.findall(match.group(0))
        yield "".join(pieces).replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def schema():
    """The tables, as a new bank gets them."""
    db = sqlite3.connect(":memory:")
    db.create_function("vector_sum", 4, lambda *a: 0, deterministic=True)  # of ours: see functions.c
    db.create_function("one_in", 2, lambda *a: 0, deterministic=True)
    steps = [s for s in literals("src/bank/schema.c") if s.startswith(("CREATE TABLE", "ALTER TABLE"))]
    for step in steps:
        db.executescript(step)
    return db, len(steps)


def scans(db, statement):
    """The tables and indexes that a statement walks from end to end."""
    found = []
    for row in db.execute("EXPLAIN QUERY PLAN " + statement, [None] * len(set(re.findall(r"\?\d+", statement)))):
        walked = re.match(r"SCAN (\S+)", row[3])
        if walked and "VIRTUAL TABLE" not in row[3] and not row[3].startswith("SCAN CONSTANT"):
            found.append(row[3])
        if statement.startswith(("UPDATE", "DELETE")) and row[3].startswith("SEARCH") and row[3].endswith("(partition_id=?)"):
            found += [] if any(piece in statement for piece, _ in WHOLE_PARTITION) else [row[3]]
    return found


def may_walk(statement):
    """Exceptions, and looking for just any row."""
    return any(piece in statement for piece, _ in WHOLE) or re.fullmatch(r"SELECT 1 FROM \w+ LIMIT 1", statement)


def report(number, name, problems):
    for line in problems:
        print("# " + line)
    print("%s %d - %s" % ("not ok" if problems else "ok", number, name))
    return bool(problems)


def tried(db):
    """The rule on statements whose plan is known."""
    good = ["SELECT id FROM items WHERE partition_id = ?1 AND id = ?2", "SELECT epoch FROM partitions WHERE id = ?1"]
    bad = ["SELECT id FROM items WHERE user = ?1", "DELETE FROM segment_deps WHERE item_id = ?1", "SELECT count(*) FROM turns",
           "UPDATE items SET version = 1 WHERE partition_id = ?1 AND user = ?2"]
    return ["no walk found in: " + s for s in bad if not scans(db, s)] + ["walk found in: " + s for s in good if scans(db, s)]


def main():
    db, n_steps = schema()
    problems, seen, used = [], 0, set()
    for path in sorted(glob.glob(os.path.join(ROOT, "src/bank/*.c"))):
        name = os.path.relpath(path, ROOT)
        for statement in literals(name):
            if not STATEMENT.match(statement) or "%" in statement:
                continue
            seen += 1
            if name in WHOLE_FILES:
                continue
            used |= {piece for piece, _ in WHOLE if piece in statement}
            try:
                walked = [] if may_walk(statement) else scans(db, statement)
            except sqlite3.Error as error:
                problems.append("%s: %s in: %s" % (name, error, statement))
                continue
            problems += ["%s: %s in: %s" % (name, walk, statement) for walk in walked]
    print("1..3")
    failed = report(1, "the rule finds a walk, and only a walk", tried(db))
    failed |= report(2, "%d statements of the bank find their rows by an index" % seen, problems)
    few = [] if seen > 40 and n_steps >= 3 else ["only %d statements and %d schema steps were found" % (seen, n_steps)]
    failed |= report(3, "statements were found, and every exception is one of them",
                     few + ["no statement with: " + piece for piece, _ in WHOLE if piece not in used])
    return failed


if __name__ == "__main__":
    sys.exit(main())
