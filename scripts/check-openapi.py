#!/usr/bin/env python3
"""docs/openapi.json against the program: every route of the C tables is described and nothing else, every reference leads somewhere,
every operation says what it answers. TAP on stdout; planted faults must be found."""
import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
METHODS = ("get", "put", "post", "delete", "patch")
TABLE = re.compile(r"is_route is_routes_\w+\[\] = \{(.*?)\n\};", re.S)
MACRO = re.compile(r"#define (\w+)\(([^)]*)\)((?:[^\n]*\\\n)*[^\n]*)")
ROUTE = re.compile(r'\{\s*"([A-Z]+)",\s*"([^"]+)"')


def expanded(text):
    """The table's rows with the file's own macros put in, as the compiler does."""
    macros = {m[1]: ([a.strip() for a in m[2].split(",")], m[3].replace("\\\n", " ")) for m in MACRO.finditer(text)}
    out = []
    for table in TABLE.findall(text):
        for _ in range(4):  # macros that use macros
            for name, (params, body) in macros.items():
                def put(m):
                    row = body
                    for param, value in zip(params, [v.strip() for v in m[1].split(",")]):
                        row = re.sub(r"\b%s\b" % param, lambda _, v=value: v, row)
                    return row
                table = re.sub(r"\b%s\(([^()]*)\)" % name, put, table)
        out.append(table)
    return "\n".join(out)


def routes(texts):
    return {(m.lower(), p) for text in texts for m, p in ROUTE.findall(expanded(text))}


def described(doc):
    return {(m, p) for p, ops in doc["paths"].items() for m in ops if m in METHODS}


def differences(texts, doc):
    have, said = routes(texts), described(doc)
    return (["%s %s is served and not described" % r for r in sorted(have - said)]
            + ["%s %s is described and not served" % r for r in sorted(said - have)])


def walk(node, path=""):
    yield path, node
    if isinstance(node, dict):
        for k, v in node.items():
            yield from walk(v, path + "/" + k)
    elif isinstance(node, list):
        for i, v in enumerate(node):
            yield from walk(v, "%s/%d" % (path, i))


def faults(doc):
    found, used, ids = [], set(), set()
    for path, node in walk(doc):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            target = doc
            for part in node["$ref"].lstrip("#/").split("/"):
                target = target.get(part, {}) if isinstance(target, dict) else {}
            used.add(node["$ref"])
            if not target:
                found.append("%s leads nowhere: %s" % (path, node["$ref"]))
    for kind, entries in doc["components"].items():
        found += ["components/%s/%s is not used" % (kind, n) for n in entries
                  if kind != "securitySchemes" and "#/components/%s/%s" % (kind, n) not in used]
    for path, ops in doc["paths"].items():
        for method, op in ops.items():
            where = "%s %s" % (method, path)
            if op.get("operationId") in ids:
                found.append(where + ": its operationId is not its own")
            ids.add(op.get("operationId"))
            if not op.get("summary") or not any(c[0] in "2" for c in op["responses"]) and not op.get("deprecated"):
                found.append(where + ": no summary, or no success")
            if not op.get("deprecated") and not {"4XX", "5XX"} <= set(op["responses"]):
                found.append(where + ": its errors are not described")
            params = [p if "$ref" not in p else doc["components"]["parameters"][p["$ref"].split("/")[-1]] for p in op.get("parameters", [])]
            if set(re.findall(r"\{(\w+)\}", path)) != {p["name"] for p in params if p["in"] == "path"}:
                found.append(where + ": the path's parameters are others")
    return found


def main():
    texts = [open(f, encoding="utf-8").read() for f in sorted(glob.glob(os.path.join(ROOT, "src/serve/*.c")))]
    with open(os.path.join(ROOT, "docs/openapi.json"), encoding="utf-8") as f:
        doc = json.load(f)
    planted = json.loads(json.dumps(doc))
    planted["paths"]["/nowhere"] = {"get": {"responses": {}}}
    del planted["paths"]["/health"]
    planted["paths"]["/ready"]["get"]["responses"]["200"] = {"$ref": "#/components/schemas/Gone"}
    seen = differences(texts, planted) + faults(planted)
    cases = [("every route is described, and nothing else", differences(texts, doc)), ("the description is sound", faults(doc)),
             ("there are tables to read", [] if len(routes(texts)) > 40 else ["only %d routes found" % len(routes(texts))]),
             ("planted faults are found", [w for w in ("get /health is served", "get /nowhere is described", "leads nowhere", "no summary")
                                           if not any(w in s for s in seen)])]
    for n, (name, found) in enumerate(cases, 1):
        for line in found[:40]:
            print("# " + line)
        print("%s %d - %s" % ("not ok" if found else "ok", n, name))
    print("1..%d" % len(cases))
    return 1 if any(found for _, found in cases) else 0


sys.exit(main())
