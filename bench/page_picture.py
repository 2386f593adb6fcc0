#!/usr/bin/env python3
"""Makes docs/page.png: the server's page with a question of the demo, as text beside it.

    build/release/inferscale serve --home A_NEW_FOLDER          # in another shell
    CACHE/clients-HASH/bin/python bench/page_picture.py URL docs/page.png

tests/clients.sh makes that Python, with playwright, in the cache. The memory is what
data/demo.jsonl tells of Nora's home; both stages are encoded before the question is asked. The
server is this machine's. A picture whose answers are wrong is refused.
"""
import json
import os
import shutil
import sys
import time
import urllib.request

from playwright.sync_api import sync_playwright

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUESTION, RIGHT = "Who has the spare key to Nora's flat?", "Okafor"
PATIENCE_S = 1800


def api(method, url, data=None):
    request = urllib.request.Request(url, method=method, data=data)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def wait_until(what, holds):
    for _ in range(PATIENCE_S):
        if holds():
            return
        time.sleep(1)
    sys.exit(f"{what} did not come to an end in {PATIENCE_S} s")


def is_encoded(url):
    e = api("GET", url + "/inferscale/encode")
    return e["n_unembedded"] + e["n_unencoded"] + e["n_unrefined"] == 0


def take(url, path):
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"),
                                    args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = browser.new_page(viewport={"width": 1280, "height": 955})
        page.set_default_timeout(120000)
        page.goto(url + "/")
        page.fill("#user", "nora")
        page.click("#who button")
        page.evaluate("document.getElementById('tokens').value = 40")
        page.fill("#question", QUESTION)
        page.click("#send")
        answer = page.locator(".from-model").last
        answer.locator(".bar").wait_for()
        answer.locator("button", has_text="Compare").click()
        answer.locator(".race").wait_for()
        said = answer.inner_text()
        answer.locator("summary").click()
        answer.locator(".facts-used li").first.wait_for()
        page.screenshot(path=path, full_page=True)
        browser.close()
    print(said)
    same = "Both answers are the same" in said
    if said.count(RIGHT) < (1 if same else 2):
        sys.exit(f"an answer lacks {RIGHT}; the picture is not to be used")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    url, path = sys.argv[1].rstrip("/"), sys.argv[2]
    with open(os.path.join(ROOT, "data", "demo.jsonl"), encoding="utf-8") as f:
        lines = [line for line in f if '"topic": "home"' in line]
    api("POST", url + "/inferscale/import?user_id=nora", "".join(lines).encode())
    wait_until("the encoder", lambda: is_encoded(url))
    take(url, path)


if __name__ == "__main__":
    main()
