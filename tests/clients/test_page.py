"""The page at /, driven as people do: by mouse, by keyboard alone, on a phone, in the dark, with memories that try to be markup.
INFERSCALE_SHOTS: a folder for screenshots (default: none are kept)."""
import json
import os
import shutil
import time
import urllib.request

from playwright.sync_api import sync_playwright

from tap import URL, case, finish

SHOTS = os.environ.get("INFERSCALE_SHOTS")
LONG = 120000  # ms: a small machine may be busy
NASTY = ["<img src=x onerror=\"document.title='broken'\">", "<script>document.title='broken'</script>", "</div><svg onload=alert(1)>",
         "javascript:alert(1) {{7*7}} ${7*7} &lt;b&gt;", "\u202egnp.exe \u0000"[:-1] + " '\"` <style>*{display:none}</style>"]


def api(method, path, body=None):
    request = urllib.request.Request(URL + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def remember(user, *texts):
    return [r["id"] for r in api("POST", "/memories", {"messages": [{"role": "user", "content": t} for t in texts], "user_id": user,
                                                       "timestamp": "2026-11-30", "infer": False})["results"]]


def encoded():
    """Waits until nothing waits for its embedding or its KV."""
    for _ in range(240):
        e = api("GET", "/inferscale/encode")
        if e["n_unembedded"] + e["n_unencoded"] == 0:
            return
        time.sleep(0.5)
    raise AssertionError("the encoder did not come to an end: %r" % e)


def until(page, condition, arg=None):
    """Waits for a condition; not playwright's wait_for_function, whose eval the page's policy forbids."""
    for _ in range(LONG // 100):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(100)
    raise AssertionError("never came true: " + condition)


def shot(page, name, full=True):
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
        page.screenshot(path=os.path.join(SHOTS, name + ".png"), full_page=full)


def open_page(browser, user, **options):
    """A tab of its own; everything that goes wrong in it is collected."""
    context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 860}), **options)
    page = context.new_page()
    page.set_default_timeout(LONG)
    page.faults = []
    page.on("pageerror", lambda e: page.faults.append("error: %s" % e))
    page.on("dialog", lambda d: (page.faults.append("dialog: " + d.message), d.dismiss()))
    page.on("console", lambda m: page.faults.append("console: " + m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.faults.append("foreign: " + r.url) if not r.url.startswith((URL, "data:")) else None)
    page.goto(URL + "/")
    page.fill("#user", user)
    page.click("#who button")
    until(page, "u => sessionStorage.getItem('inferscale-user') === u", user)
    return page


def ask(page, question):
    before = page.locator(".from-model .bar").count()
    page.fill("#question", question)
    page.click("#send")
    until(page, "n => document.querySelectorAll('.from-model .bar').length > n", before)


def no_faults(page):
    assert not page.faults, page.faults
    assert page.title() == "InferScale", page.title()


def contrast(page):
    """The least contrast of text with what is behind it, over all elements that hold text themselves."""
    return page.evaluate("""() => {
      const rgb = (c) => (c.match(/[0-9.]+/g) || []).map(Number);
      const lum = ([r, g, b]) => { const f = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
        return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
      let least = [21, ""];
      for (const e of document.querySelectorAll("body *")) {
        if (!e.checkVisibility() || !e.getClientRects().length || e.disabled) continue;
        if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
        let b = e, back = [255, 255, 255, 0];
        for (; b; b = b.parentElement) { back = rgb(getComputedStyle(b).backgroundColor); if (back.length < 4 || back[3] > 0) break; }
        const x = lum(rgb(getComputedStyle(e).color)), y = lum(back), c = (Math.max(x, y) + .05) / (Math.min(x, y) + .05);
        if (c < least[0]) least = [c, e.outerHTML.slice(0, 120)];
      }
      return least;
    }""")


def main(browser):
    @case("the memory that is typed is shown and asked, also when the name was not confirmed")
    def _():
        facts = (("page-typed-a", "Ada keeps bees."), ("page-typed-b", "Bob keeps goats."))
        for user, fact in facts:
            api("POST", "/memories", {"user_id": user, "text": fact})
        page = open_page(browser, "page-typed-a")
        page.locator("#facts li", has_text="bees").wait_for()
        asked = []
        page.on("request", lambda r: asked.append(json.loads(r.post_data)["memory"]["user_id"])
                if r.url.endswith("/chat/completions") else None)
        page.evaluate("document.getElementById('tokens').value = 2")
        page.fill("#user", "page-typed-b")
        page.fill("#question", "What is kept?")
        page.press("#question", "Enter")
        page.locator("#facts li", has_text="goats").wait_for()
        assert page.locator("#facts li", has_text="bees").count() == 0
        until(page, "() => document.querySelectorAll('.from-model .bar').length > 0")
        assert asked == ["page-typed-b"], asked
        assert page.input_value("#user") == "page-typed-b"
        no_faults(page)

    @case("a memory is added, an answer uses it, and says what that cost; the same as text is compared")
    def _():
        page = open_page(browser, "page-anna")
        for fact in ("Anna is allergic to peanuts.", "Anna moved to Bergen in May 2024 and works there as a cabinet maker.",
                     "Anna's brother Jonas plays the violin in the Oslo philharmonic orchestra."):
            page.fill("#fact", fact)
            page.click("#add button")
            page.locator("#facts li", has_text=fact).wait_for()
        encoded()
        page.fill("#tokens", "40") if page.locator("#tokens").is_visible() else page.evaluate("document.getElementById('tokens').value = 40")
        ask(page, "Which food is Anna allergic to?")
        answer = page.locator(".from-model").last
        answer.locator(".facts-used li", has_text="peanuts").wait_for()
        assert "score" in answer.locator(".facts-used .of").first.inner_text()
        label = answer.locator(".bar").get_attribute("aria-label")
        assert "injected" in label and " 0 injected" not in label, label
        assert "First token after" in answer.inner_text()
        answer.locator("button", has_text="Compare").click()
        answer.locator(".race").wait_for()
        assert "injected" in answer.locator(".race").inner_text() and "as text" in answer.locator(".race").inner_text()
        # What text ran with stands beside its time, as the server has it.
        fast = api("GET", "/inferscale/info")["model"]["flash_attention"]
        said = answer.locator(".compared .numbers").first.inner_text()
        assert ("Both ran with flash attention." if fast else "Text ran without flash attention") in said, said
        shot(page, "chat")
        no_faults(page)
        page.context.close()

    @case("a memory is edited, searched for, and forgotten with proof; none of it is in the page or the store afterwards")
    def _():
        ids = remember("page-edit", "The blue bicycle stands in the cellar.", "Mira collects stamps of Norway.")
        page = open_page(browser, "page-edit")
        item = page.locator("#facts li", has_text="bicycle")
        item.locator("button", has_text="Edit").click()
        page.locator("#facts textarea").fill("The green bicycle stands in the shed.")
        page.locator("#facts button", has_text="Save").click()
        page.locator("#facts li", has_text="green bicycle").wait_for()
        assert api("GET", "/memories/%s?user_id=page-edit" % ids[0])["memory"] == "The green bicycle stands in the shed."
        page.fill("#query", "stamps")
        page.press("#query", "Enter")
        page.locator("#all").wait_for()
        assert "stamps" in page.locator("#facts li").first.inner_text()
        page.click("#all")
        encoded()
        page.locator("#facts li", has_text="green bicycle").locator("button", has_text="Forget").click()
        assert page.evaluate("document.activeElement.id") == "forget-no"  # what destroys is never what Enter does at once
        page.check("#prove")
        page.click("#forget-yes")
        until(page, "() => document.getElementById('proof').textContent.startsWith('Proven')")
        shot(page, "forget", full=False)
        page.click("#forget-no")
        assert page.locator("#facts li", has_text="bicycle").count() == 0
        assert page.inner_text("#count") == "1 fact", page.inner_text("#count")
        left = api("GET", "/memories?user_id=page-edit")["results"]
        assert [m["id"] for m in left] == [ids[1]], left
        no_faults(page)
        page.context.close()

    @case("what was used and is forgotten goes from the list under the answer and from what was found; the cards follow one another")
    def _():
        remember("page-used", "Ida keeps her kayak at Lake Mjosa.")
        page = open_page(browser, "page-used")
        page.locator("#facts li", has_text="kayak").wait_for()
        encoded()
        ask(page, "Where is the kayak of Ida?")
        page.locator(".facts-used li", has_text="Mjosa").wait_for()
        gap = page.evaluate("""() => document.getElementById('live').getBoundingClientRect().top -
            document.getElementById('memory').getBoundingClientRect().bottom""")
        page.fill("#query", "kayak")
        page.press("#query", "Enter")
        page.locator("#count", has_text="1 fact found").wait_for()
        page.locator("#facts li").first.locator("button", has_text="Forget").click()
        page.click("#forget-yes")
        until(page, "() => !document.getElementById('forget').open")
        assert page.inner_text("#count") == "0 facts found", page.inner_text("#count")
        assert page.locator(".facts-used li", has_text="forgotten").count() == 1
        assert page.locator(".facts-used li", has_text="Mjosa").count() == 0
        assert gap < 24, "a hole of %d px between the memory and the figures beside a long chat" % gap
        no_faults(page)
        page.context.close()

    @case("all of it by keyboard alone, in an order that follows the page, with the focus always visible and never lost")
    def _():
        page = open_page(browser, "page-keys")
        page.evaluate("document.activeElement.blur()")
        page.reload()
        page.locator("#model").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", seen
            if seen[-1] == "fact":
                break
        assert seen[-1] == "fact", seen
        page.keyboard.type("The lighthouse keeper is called Tessa.")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator("#facts li", has_text="lighthouse").wait_for()
        encoded()
        page.focus("#question")
        page.keyboard.type("Who keeps the lighthouse?")
        page.keyboard.press("Enter")
        page.locator(".from-model .bar").wait_for()
        assert page.evaluate("document.activeElement.id") == "question"
        page.locator("#facts button", has_text="Edit").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
        page.keyboard.press("Escape")
        assert "Edit" in page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator("#forget[open]").wait_for()
        page.keyboard.press("Escape")
        assert page.locator("#forget[open]").count() == 0
        assert "Forget" in page.evaluate("document.activeElement.textContent"), "the focus returns to what opened the dialog"
        no_faults(page)
        page.context.close()

    @case("memories and questions that try to be markup stay text")
    def _():
        remember("page-nasty", *NASTY)
        page = open_page(browser, "page-nasty")
        page.locator("#facts li").nth(len(NASTY) - 1).wait_for()
        encoded()
        assert {t for t in page.locator("#facts .text").all_text_contents()} == set(NASTY)
        ask(page, NASTY[0])
        page.locator("#facts li").first.locator("button", has_text="Edit").click()
        page.locator("#facts button", has_text="Cancel").click()
        page.locator("#facts li").first.locator("button", has_text="Forget").click()
        page.click("#forget-no")
        assert page.locator("#log img, #facts img, #log script, #facts script, #facts style, #log svg, #facts svg").count() == 0
        no_faults(page)
        page.context.close()

    @case("a phone of 390 px: nothing is cut off, everything can be hit with a finger")
    def _():
        remember("page-phone", "Averyveryverylongwordwithoutanyspace" * 8, "Rosa keeps bees in Ghent.")
        page = open_page(browser, "page-phone", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        page.locator("#facts li", has_text="bees").wait_for()
        encoded()
        ask(page, "What does Rosa keep?")
        wide = page.evaluate("""() => [document.documentElement.scrollWidth, [...document.querySelectorAll('body *')].filter((e) =>
            e.checkVisibility() && !e.closest('.unseen, .skip, svg') && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.id || e.className)]""")
        assert wide[0] <= 390 and not wide[1], wide
        small = page.evaluate("""() => [...document.querySelectorAll('button, input:not([type=checkbox]), select')].filter((e) => e.checkVisibility() &&
            e.getBoundingClientRect().height < 40).map((e) => e.id || e.textContent)""")
        assert not small, small
        shot(page, "phone")
        no_faults(page)
        page.context.close()

    for scheme in ("light", "dark"):
        @case("text has a contrast of 4.5 or more, %s" % scheme)
        def _(scheme=scheme):
            remember("page-" + scheme, "Hugo restores old radios in Turin.")
            page = open_page(browser, "page-" + scheme, color_scheme=scheme)
            page.locator("#facts li").wait_for()
            encoded()
            ask(page, "What does Hugo restore?")
            least = contrast(page)
            assert least[0] >= 4.5, least
            shot(page, scheme)
            no_faults(page)
            page.context.close()

    @case("who wants less motion gets none; what an answer says is announced once, when it is whole")
    def _():
        remember("page-calm", "Pavel lost the key of the canoe.")
        page = open_page(browser, "page-calm", reduced_motion="reduce")
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        page.evaluate("""() => { window.heard = []; new MutationObserver(() => heard.push(document.getElementById('said').textContent))
            .observe(document.getElementById('said'), { childList: true, characterData: true, subtree: true }); }""")
        ask(page, "What did Pavel lose?")
        heard = [h for h in page.evaluate("heard") if h]
        assert len(heard) == 2 and heard[1].startswith("Answer: "), heard
        assert page.locator("#log[aria-live]").count() == 0
        nameless = page.evaluate("""() => [...document.querySelectorAll('input, textarea, select, button, a, [role=img]')].filter((e) =>
            !(e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.textContent.trim())).map((e) => e.outerHTML.slice(0, 80))""")
        assert not nameless, nameless
        no_faults(page)
        page.context.close()

    @case("an error says its cause and what to do; the question is not lost; the conversation goes on")
    def _():
        page = open_page(browser, "page-error")
        page.route("**/v1/chat/completions", lambda r: r.fulfill(status=429, headers={"Retry-After": "7"}, content_type="application/json",
                                                                 body='{"error": {"message": "full"}}'))
        page.fill("#question", "Is anybody there?")
        page.click("#send")
        page.locator("#error", has_text="in 7 s").wait_for()
        assert page.input_value("#question") == "Is anybody there?"
        page.unroute("**/v1/chat/completions")
        page.route("**/v1/chat/completions", lambda r: r.abort())
        page.click("#send")
        page.locator("#error", has_text="cannot be reached").wait_for()
        page.unroute("**/v1/chat/completions")
        page.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, content_type="text/event-stream", body='data: {"choices": []}\n\n'))
        page.click("#send")
        page.locator("#error", has_text="broke off").wait_for()
        page.unroute("**/v1/chat/completions")
        page.click("#send")
        page.locator(".from-model .bar").wait_for()
        assert page.locator("#error").is_hidden()
        page.faults[:] = [f for f in page.faults if not f.startswith("console: Failed to load resource")]
        no_faults(page)
        page.context.close()

    @case("the page's figures are the server's: the charts move after an answer")
    def _():
        page = open_page(browser, "page-live")
        until(page, "() => document.querySelectorAll('#rate path').length > 0")
        ask(page, "Say something about the sea.")
        until(page, "() => document.getElementById('rate-now').textContent !== '–' && document.getElementById('rate').innerHTML.includes('L')")
        no_faults(page)
        page.context.close()

    @case("the files are sent once: a tag that is known is answered by 304, and the policy forbids everything else")
    def _():
        with urllib.request.urlopen(URL + "/app.js") as reply:
            tag, policy = reply.headers["ETag"], reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, policy
        try:
            urllib.request.urlopen(urllib.request.Request(URL + "/app.js", headers={"If-None-Match": tag}))
            raise AssertionError("sent again")
        except urllib.error.HTTPError as e:
            assert e.code == 304, e.code


chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if chromium is None:
    @case("there is a browser")
    def _():
        raise AssertionError("no chromium; apt-get install chromium")
else:
    with sync_playwright() as p:
        started = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        main(started)
        started.close()
finish()
