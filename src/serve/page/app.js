/* app.js - the page: chat with memory, what each answer cost, the memory itself, and how the server is doing. No framework. Whatever
 * comes from a model, a memory or a server is put in as text (textContent), never as markup. */
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const state = {
  user: "default", model: "", messages: [], facts: new Map(), next: null, busy: null,
  forgetting: null, search: "", listing: 0, /* listing: which list was asked for last */
};

/* ---- Small things -------------------------------------------------------------------------------------------------------- */

/* An element with properties and children; strings become text. */
function el(name, props, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(props || {})) {
    if (k === "class") e.className = v;
    else if (k in e && k !== "role") e[k] = v;
    else e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}

const ms = (x) => !Number.isFinite(x) ? "–" : x >= 1000 ? (x / 1000).toFixed(2) + " s" : x >= 10 ? x.toFixed(0) + " ms" : x.toFixed(1) + " ms";
const count = (n, one, many) => n.toLocaleString("en") + " " + (n === 1 ? one : many);

function remember(key, value) {
  try {
    if (value) sessionStorage.setItem(key, value);
    else sessionStorage.removeItem(key);
  } catch { /* a browser that keeps nothing: then the key lives as long as the page */ }
}
function recalled(key) {
  try { return sessionStorage.getItem(key) || ""; } catch { return ""; }
}
let apiKey = recalled("inferscale-key");

function say(text) { $("said").textContent = text; } /* read out by screen readers, once */

function showError(error) {
  const box = $("error");
  if (!error || error.name === "AbortError") { box.hidden = true; return; }
  box.textContent = error.message;
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

/* ---- The server ---------------------------------------------------------------------------------------------------------- */

class ApiError extends Error {
  constructor(status, message, body) { super(message); this.status = status; this.body = body; }
}

function explain(status, body, retry) {
  const said = (body && ((body.error && body.error.message) || (typeof body.detail === "string" ? body.detail : ""))) || "";
  if (status === 401) return (said || "This server needs an API key.") + " Open “API key” above, enter one and try again.";
  if (status === 403) return (said || "This key may not do that.") + " Use a key that is bound to this owner, or an admin key.";
  if (status === 429) return (said || "The server has more requests than it can take.") + " Try again" + (retry ? " in " + retry + " s." : " in a moment.");
  if (status === 503) return "The server is starting or ending. Wait a moment and try again.";
  return said || "The server answered with HTTP " + status + ". Its log says more (look for the request id).";
}

async function call(method, path, body, options) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (apiKey) headers.Authorization = "Bearer " + apiKey;
  let reply;
  try {
    reply = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. Is it still running? Start it with `inferscale serve` and try again.");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => null);
  throw new ApiError(reply.status, explain(reply.status, said, reply.headers.get("Retry-After")), said);
}
const callJson = async (...args) => (await call(...args)).json();

/* The events of a streamed answer, one JSON object each. */
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, "The answer broke off. Ask again; if it happens often, look into the server's log.");
    rest += value;
    const lines = rest.split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(0, event.error.message);
      yield event;
    }
  }
}

/* Asks, streams text to onText; {text, memory, usage, finish, seen}: seen = time to the first piece as the browser saw it. */
async function ask(messages, mode, onText, signal) {
  const body = {
    model: state.model, messages, stream: true, stream_options: { include_usage: true },
    max_tokens: Number($("tokens").value) || 128, temperature: Number($("temperature").value) || 0,
    memory: mode === "none" ? { user_id: state.user, mode } : { user_id: state.user, mode, k: Number($("k").value) || 10 },
  };
  const began = performance.now();
  const out = { text: "", memory: null, usage: null, finish: "", seen: NaN };
  for await (const event of events(await call("POST", "/v1/chat/completions", body, { signal }))) {
    const choice = event.choices && event.choices[0];
    if (event.memory) out.memory = event.memory;
    if (choice && choice.memory) out.memory = choice.memory;
    if (event.usage) out.usage = event.usage;
    if (choice && choice.finish_reason) out.finish = choice.finish_reason;
    const piece = choice && choice.delta && choice.delta.content;
    if (piece) {
      if (!out.text) out.seen = performance.now() - began;
      out.text += piece;
      onText(out.text);
    }
  }
  return out;
}

const ttftOf = (answer) => {
  const t = answer.memory && answer.memory.timings && answer.memory.timings.ttft_ms;
  return Number.isFinite(t) ? t : answer.seen;
};

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

function bubble(who, text) {
  const body = el("div", { class: "bubble", dir: "auto" }, text);
  const item = el("li", { class: who === "You" ? "from-user" : "from-model" }, el("p", { class: "who" }, who), body);
  $("log").append(item);
  $("empty-chat").hidden = true;
  return { item, body };
}

/* The prompt as a bar: who provided its tokens. */
function tokenBar(tokens) {
  const parts = [["injected", tokens.injected, "injected"], ["resident", tokens.resident, "already there"], ["computed", tokens.computed, "computed"]];
  const total = parts.reduce((n, p) => n + (p[1] || 0), 0) || 1;
  const bar = el("div", { class: "bar", role: "img", "aria-label":
    "Prompt tokens: " + parts.map((p) => (p[1] || 0) + " " + p[2]).join(", ") });
  const key = el("p", { class: "key" });
  for (const [name, n, words] of parts) {
    const piece = el("span", { class: name });
    piece.style.width = (100 * (n || 0) / total) + "%";
    bar.append(piece);
    key.append(el("span", { class: "entry" }, el("span", { class: "mark " + name }), (n || 0).toLocaleString("en") + " " + words), " ");
  }
  return [bar, key];
}

async function textOf(id) {
  const known = state.facts.get(id);
  if (known) return known.memory;
  const one = await callJson("GET", "/memories/" + encodeURIComponent(id) + "?user_id=" + encodeURIComponent(state.user));
  state.facts.set(id, one);
  return one.memory;
}

const FORGOTTEN = "(forgotten meanwhile)";

function factsUsed(facts) {
  const list = el("ul");
  for (const f of [...facts].reverse()) { /* the prompt has the best last, a reader wants it first */
    const text = el("span", { dir: "auto" }, "…");
    text.dataset.id = f.id;
    list.append(el("li", {}, el("div", {}, text), el("div", { class: "of" }, el("span", { class: "source " + f.source }, f.source),
      "score " + Number(f.score).toFixed(2) + ", " + count(f.tokens, "token", "tokens") + (f.policy ? ", encoded by " + f.policy : ""))));
    textOf(f.id).then((t) => { text.textContent = t; }, () => { text.textContent = FORGOTTEN; });
  }
  const d = el("details", { class: "facts-used" }, el("summary", {}, count(facts.length, "fact used", "facts used")), list);
  d.open = facts.length <= 5;
  return d;
}

function race(kv, text) {
  const longest = Math.max(kv, text) || 1, box = el("div", { class: "race" });
  for (const [name, t] of [["kv", kv], ["text", text]]) {
    const run = el("div", { class: "run " + name });
    run.style.width = Math.max(1, 100 * t / longest) + "%";
    box.append(el("span", {}, name === "kv" ? "injected" : "as text"), el("div", { class: "track", "aria-hidden": "true" }, run), el("span", {}, ms(t)));
  }
  return box;
}

/* What text ran with: the engine has one setting, the best for injected memory, which may not be the
 * best for text. */
async function textSetting() {
  const info = await callJson("GET", "/inferscale/info").catch(() => null);
  if (!info || !info.model || !String(info.model.engine).startsWith("libllama")) return "";
  return info.model.flash_attention ? "Both ran with flash attention. "
    : "Text ran without flash attention, which is best for injected memory here; with it text may " +
      "be sooner (inferscale bench ttft measures both). ";
}

async function compare(button, holder, question, first) {
  const other = first.mode === "text" ? "kv" : "text";
  button.disabled = true;
  button.textContent = "Asking again…";
  showError(null);
  try {
    const body = el("div", { class: "bubble", dir: "auto" });
    const answer = await ask(question, other, (t) => { if (!body.isConnected) holder.append(body); body.textContent = t; });
    const times = { [first.mode]: ttftOf(first.answer), [other]: ttftOf(answer) };
    const same = answer.text === first.answer.text, setting = await textSetting();
    holder.replaceChildren(race(times.kv, times.text),
      el("p", { class: "numbers" }, "To the first token: " + ms(times.kv) + " injected, " + ms(times.text) + " as text" +
        (times.kv > 0 ? " (" + (times.text / times.kv).toFixed(1) + " times as long)." : ".") + " " + setting +
        (same ? "Both answers are the same, word for word." : "The other answer:")));
    if (!same) holder.append(body);
    if (answer.memory && answer.memory.fallback) holder.append(el("p", { class: "numbers warn" }, "Not as asked: " + answer.memory.fallback));
    say("Compared. " + holder.querySelector(".numbers").textContent);
    button.remove();
    holder.tabIndex = -1;
    holder.focus({ preventScroll: true });
  } catch (error) {
    holder.replaceChildren();
    button.disabled = false;
    button.textContent = "Compare";
    showError(error);
  }
}

/* What stands under an answer. */
function account(item, answer, question) {
  const m = answer.memory;
  if (!m) {
    item.append(el("p", { class: "numbers muted" }, "First token after " + ms(answer.seen) + "."));
    return;
  }
  const rate = answer.usage && m.timings && m.timings.total_ms > m.timings.ttft_ms
    ? (answer.usage.completion_tokens - 1) / (m.timings.total_ms - m.timings.ttft_ms) * 1000 : NaN;
  item.append(...tokenBar(m.tokens || {}));
  item.append(el("p", { class: "numbers" }, "First token after ", el("strong", {}, ms(ttftOf(answer))), ", memory ",
    m.mode === "kv" ? "injected" : m.mode === "text" ? "as text" : "not used",
    Number.isFinite(rate) && rate > 0 ? ", then " + rate.toFixed(0) + " tokens a second" : "",
    m.header === "generic" ? ". The system text is not the one that facts were encoded after." : "."));
  if (m.fallback) item.append(el("p", { class: "numbers warn" }, "Not as asked: " + m.fallback));
  if (answer.finish === "length") item.append(el("p", { class: "numbers muted" }, "Cut at the longest answer; raise it in Settings."));
  if (m.facts && m.facts.length) item.append(factsUsed(m.facts));
  if (m.mode !== "none" && m.facts && m.facts.length) {
    const holder = el("div", { class: "compared" });
    const button = el("button", { type: "button", class: "small" }, "Compare");
    button.setAttribute("aria-label", "Compare with the same memory " + (m.mode === "text" ? "injected" : "as text"));
    button.addEventListener("click", () => compare(button, holder, question, { mode: m.mode === "text" ? "text" : "kv", answer }));
    item.append(el("div", { class: "row" }, button), holder);
  }
}

async function send() {
  takeTyped();
  const question = $("question").value.trim();
  if (!question || state.busy) return;
  showError(null);
  const messages = [...state.messages, { role: "user", content: question }];
  const asked = bubble("You", question), { item, body } = bubble("InferScale", "");
  body.setAttribute("aria-busy", "true");
  $("question").value = "";
  state.busy = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  say("Asked. The answer is being written.");
  item.scrollIntoView({ block: "nearest" });
  try {
    const answer = await ask(messages, $("mode").value, (t) => { body.textContent = t; }, state.busy.signal);
    if (!answer.text) body.textContent = "(empty answer)";
    state.messages = [...messages, { role: "assistant", content: answer.text || " " }];
    account(item, answer, messages);
    say("Answer: " + answer.text);
    item.scrollIntoView({ block: "nearest" });
  } catch (error) {
    item.remove();
    if (error.name === "AbortError") {
      asked.item.remove();
      say("Stopped.");
    } else {
      asked.item.remove();
      showError(error);
    }
    if (!$("question").value) $("question").value = question;
    $("empty-chat").hidden = $("log").children.length > 0;
  } finally {
    body.removeAttribute("aria-busy");
    state.busy = null;
    $("send").disabled = false;
    $("stop").hidden = true;
    $("question").focus({ preventScroll: true });
  }
}

function freshConversation() {
  if (state.busy) state.busy.abort();
  state.messages = [];
  $("log").replaceChildren();
  $("empty-chat").hidden = false;
  say("New conversation.");
}

/* The memory whose name is typed is the one that is shown, and the one that is asked. */
function showTyped() {
  state.user = $("user").value.trim() || "default";
  $("user").value = state.user;
  remember("inferscale-user", state.user);
  state.facts.clear();
  $("facts").replaceChildren();
  freshConversation();
  showError(null);
  showMemory();
}

/* A name that was typed and not confirmed counts as soon as anything is done with it. */
function takeTyped() {
  if (($("user").value.trim() || "default") !== state.user) showTyped();
}

/* ---- The memory ---------------------------------------------------------------------------------------------------------- */

const PAGE = 50;
const owner = () => "user_id=" + encodeURIComponent(state.user);
const dateOf = (f) => (f.dated === false ? "told " : "") + (f.created_at || f.event_time || "").slice(0, 10);

function factItem(f) {
  state.facts.set(String(f.id), f);
  const text = el("div", { class: "text", dir: "auto" }, f.memory);
  const edit = el("button", { type: "button", class: "small" }, "Edit");
  const forget = el("button", { type: "button", class: "small danger" }, "Forget");
  const item = el("li", {}, text, el("div", { class: "row" }, el("span", { class: "muted" }, dateOf(f) +
    (Number.isFinite(f.score) ? " · score " + f.score.toFixed(2) : "")), edit, forget));
  item.dataset.id = f.id;
  edit.setAttribute("aria-label", "Edit: " + f.memory.slice(0, 60));
  forget.setAttribute("aria-label", "Forget: " + f.memory.slice(0, 60));
  edit.addEventListener("click", () => editFact(item, f));
  forget.addEventListener("click", () => askForget(f));
  return item;
}

function editFact(item, f) {
  const box = el("textarea", { rows: 3, value: f.memory, maxLength: 60000 });
  box.setAttribute("aria-label", "New text of this fact");
  const save = el("button", { type: "submit", class: "small strong" }, "Save"), cancel = el("button", { type: "button", class: "small" }, "Cancel");
  const form = el("form", {}, box, el("div", { class: "row" }, save, cancel));
  const back = (to) => { const fresh = factItem(to); form.closest("li").replaceWith(fresh); fresh.querySelector("button").focus(); };
  cancel.addEventListener("click", () => back(f));
  box.addEventListener("keydown", (e) => { if (e.key === "Escape") back(f); });
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    const text = box.value.trim();
    if (!text) { box.focus(); return; }
    save.disabled = true;
    try {
      await callJson("PUT", "/memories/" + encodeURIComponent(f.id) + "?" + owner(), { text });
      showError(null);
      say("Changed.");
      back({ ...f, memory: text, score: undefined });
    } catch (error) {
      save.disabled = false;
      showError(error);
    }
  });
  item.replaceChildren(form);
  box.focus();
}

function listFacts(list, more) {
  $("facts").append(...list.map(factItem));
  $("empty-memory").hidden = $("facts").children.length > 0;
  $("empty-memory").textContent = state.search ? "Nothing like that is remembered." : "Nothing is remembered here yet.";
  $("more").hidden = !more;
}

function countFacts() {
  $("count").textContent = count($("facts").children.length, "fact", "facts") + (state.search ? " found" : state.next ? " shown" : "");
}

async function showMemory(after) {
  const turn = ++state.listing;
  try {
    const path = "/memories?" + owner() + "&limit=" + PAGE + (after ? "&after=" + encodeURIComponent(after) : "");
    const page = await callJson("GET", path), list = page.results || page;
    if (turn !== state.listing) return; /* something newer was asked for */
    if (!after) { $("facts").replaceChildren(); state.search = ""; $("all").hidden = true; }
    const last = list.length ? list[list.length - 1].id : null;
    state.next = page.next || (list.length === PAGE ? last : null);
    listFacts(list, state.next);
    countFacts();
    await showEncoding();
  } catch (error) { showError(error); }
}

async function searchMemory() {
  takeTyped();
  const query = $("query").value.trim();
  if (!query) { showMemory(); return; }
  const turn = ++state.listing;
  try {
    const found = await callJson("POST", "/search", { query, user_id: state.user, top_k: 20 }), list = found.results || found;
    if (turn !== state.listing) return;
    state.search = query;
    $("facts").replaceChildren();
    listFacts(list, null);
    $("all").hidden = false;
    countFacts();
    say(count(list.length, "fact", "facts") + " found.");
    showError(null);
  } catch (error) { showError(error); }
}

async function addFact() {
  takeTyped();
  const text = $("fact").value.trim();
  if (!text) { $("fact").focus(); return; }
  try {
    const reply = await callJson("POST", "/memories", { messages: [{ role: "user", content: text }], user_id: state.user, infer: false });
    const event = reply.results && reply.results[0] && reply.results[0].event;
    $("fact").value = "";
    showError(null);
    say(event === "NONE" ? "That was remembered already." : "Remembered.");
    await showMemory();
    $("fact").focus();
  } catch (error) { showError(error); }
}

function askForget(f) {
  state.forgetting = f;
  $("forget-text").textContent = f.memory;
  $("proof").textContent = "";
  $("forget-yes").hidden = false;
  $("forget-yes").disabled = false;
  $("forget-no").textContent = "Keep";
  $("prove").disabled = false;
  $("forget").showModal();
  $("forget-no").focus();
}

/* It is gone from the store: so it goes from the page, and from what earlier answers list as used. */
function dropFact(id) {
  state.facts.delete(id);
  for (const item of [...$("facts").children]) if (item.dataset.id === id) item.remove();
  for (const text of $("log").querySelectorAll(".facts-used [data-id]")) if (text.dataset.id === id) text.textContent = FORGOTTEN;
  $("empty-memory").hidden = $("facts").children.length > 0;
  countFacts();
  say("Forgotten.");
}

function showProof(report, trouble) {
  const n = (name) => Number(report[name] || 0).toLocaleString("en");
  $("proof").textContent = (trouble ? "Forgotten, but: " + trouble + " " : report.proven ? "Proven: " : "Not proven: ") + n("scanned_files") + " files, " +
    n("scanned_bytes") + " bytes were searched for " + n("needles") + " pieces of it; " + n("traces") + " traces found. " + n("segments") +
    " files of keys and values destroyed.";
  $("forget-yes").hidden = true;
  $("forget-no").textContent = "Close";
  $("forget-no").focus();
}

async function forget() {
  const id = String(state.forgetting.id), prove = $("prove").checked;
  $("forget-yes").disabled = true;
  $("prove").disabled = true;
  $("proof").textContent = prove ? "Forgetting, and searching every file of the store…" : "Forgetting…";
  try {
    const report = await callJson("POST", "/inferscale/forget", { ids: [id], user_id: state.user, prove });
    dropFact(id);
    if (prove) { showProof(report); return; }
    $("forget").close();
    $("facts").focus();
  } catch (error) {
    if (error.body && error.body.forgotten) { /* done, and not all of it could be shown */
      dropFact(id);
      showProof(error.body, error.body.error.message);
      return;
    }
    $("proof").textContent = error.message;
    $("forget-yes").disabled = false;
    $("prove").disabled = false;
  }
}

/* How many facts still wait for their keys and values; asked again while some do. */
let encodingTimer = 0;
async function showEncoding() {
  clearTimeout(encodingTimer);
  try {
    const e = await callJson("GET", "/inferscale/encode?" + owner());
    const n = (e.n_unembedded || 0) + (e.n_unencoded || 0);
    $("encoding").textContent = n ? count(n, "step", "steps") + " of encoding still to do; until then facts are served as text."
      : e.n_unrefined ? count(e.n_unrefined, "fact waits", "facts wait") + " for the second stage of encoding." : "";
    if (n || e.n_unrefined) encodingTimer = setTimeout(() => { if (!document.hidden) showEncoding(); }, 2000);
  } catch { $("encoding").textContent = ""; }
}

/* ---- Live ---------------------------------------------------------------------------------------------------------------- */

const SAMPLES = 60, EVERY_MS = 2000;
const live = { last: null, at: 0, rate: [], kv: [], text: [], timer: 0 };

/* Sums of a metric by one label's value; "" without labels. */
function readMetrics(text) {
  const out = new Map();
  for (const line of text.split("\n")) {
    const m = /^([a-z_:]+)(?:\{([^}]*)\})? ([0-9.e+-]+)/i.exec(line);
    if (!m) continue;
    const mode = /mode="([^"]*)"/.exec(m[2] || "");
    const key = m[1] + (mode ? " " + mode[1] : "");
    if (!/\ble=/.test(m[2] || "")) out.set(key, (out.get(key) || 0) + Number(m[3]));
  }
  return out;
}

function draw(svg, series, words) {
  const top = Math.max(1e-9, ...series.flatMap((s) => s.values).filter(Number.isFinite)) * 1.1;
  const shape = (name, kind, d) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d || "M0 0");
    path.setAttribute("class", name + " " + kind);
    return path;
  };
  svg.replaceChildren(...series.flatMap((s) => { /* a line from value to value, and a dot where there is one */
    const at = s.values.map((v, i) => [240 - (s.values.length - 1 - i) * (240 / (SAMPLES - 1)), 44 - 38 * v / top]).filter((p) => Number.isFinite(p[1]));
    const text = at.map((p) => p[0].toFixed(1) + " " + p[1].toFixed(1));
    const parts = [shape(s.name, "line", text.length ? "M" + text.join("L") : "")];
    if (s.name !== "rate") parts.push(shape(s.name, "dots", text.map((t) => "M" + t + "l.01 0").join("")));
    return parts;
  }));
  svg.setAttribute("aria-label", words);
}

function push(list, value) {
  list.push(value);
  if (list.length > SAMPLES) list.shift();
}

function meanOf(now, before, mode) {
  const name = "inferscale_time_to_first_token_seconds";
  const n = (now.get(name + "_count " + mode) || 0) - (before.get(name + "_count " + mode) || 0);
  const sum = (now.get(name + "_sum " + mode) || 0) - (before.get(name + "_sum " + mode) || 0);
  return n > 0 ? sum / n * 1000 : NaN;
}

function takeMetrics(now) {
  const at = performance.now(), before = live.last;
  const running = now.get("inferscale_requests_running") || 0, waiting = now.get("inferscale_requests_waiting") || 0;
  $("load").textContent = running + " running, " + waiting + " waiting";
  if (before) {
    const made = (now.get("inferscale_generation_tokens_total") || 0) - (before.get("inferscale_generation_tokens_total") || 0);
    push(live.rate, Math.max(0, made) / (at - live.at) * 1000);
    push(live.kv, meanOf(now, before, "kv"));
    push(live.text, meanOf(now, before, "text"));
  }
  live.last = now;
  live.at = at;
  const lastOf = (list) => list.filter(Number.isFinite).pop();
  const rate = lastOf(live.rate), kv = lastOf(live.kv), text = lastOf(live.text);
  $("rate-now").textContent = rate === undefined ? "–" : rate.toFixed(rate < 10 ? 1 : 0);
  $("ttft-now").textContent = kv === undefined && text === undefined ? "–"
    : [kv === undefined ? "" : ms(kv) + " kv", text === undefined ? "" : ms(text) + " text"].filter(Boolean).join(", ");
  draw($("rate"), [{ name: "rate", values: live.rate }], "Tokens a second over the last two minutes, now " + $("rate-now").textContent);
  draw($("ttft"), [{ name: "kv", values: live.kv }, { name: "text", values: live.text }],
    "Time to first token over the last two minutes, last " + $("ttft-now").textContent);
}

async function pollMetrics() {
  clearTimeout(live.timer);
  let again = EVERY_MS;
  if (!document.hidden) {
    try {
      takeMetrics(readMetrics(await (await call("GET", "/metrics")).text()));
      $("live-note").textContent = "";
    } catch (error) {
      const denied = error.status === 401 || error.status === 403;
      $("live-note").textContent = denied ? "The server's figures need a key that is not bound to one owner." : error.message;
      again = denied ? 0 : 5 * EVERY_MS;
    }
  }
  if (again) live.timer = setTimeout(pollMetrics, again);
}

/* Whether it can answer now, which the figures alone do not say. */
async function pollReady() {
  let why = "";
  if (!document.hidden) {
    try {
      const said = await (await fetch("/ready", { cache: "no-store" })).json();
      why = said.status === "ready" ? said.notice || "" : "No answers now: " + said.reason + ".";
    } catch { why = "The server does not answer."; }
    $("unready").textContent = why;
    $("unready").hidden = !why;
  }
  setTimeout(pollReady, 2 * EVERY_MS);
}

/* ---- Beginning ----------------------------------------------------------------------------------------------------------- */

async function meet() {
  showError(null);
  try {
    const models = await callJson("GET", "/v1/models");
    state.model = models.data && models.data[0] ? models.data[0].id : "";
    $("model").textContent = state.model;
    await showMemory();
  } catch (error) {
    $("model").textContent = "not connected";
    if (error.status === 401) $("access").open = true;
    showError(error);
  }
  pollMetrics();
}
pollReady();

function on(id, event, handler) { $(id).addEventListener(event, handler); }
const submits = (id, handler) => on(id, "submit", (e) => { e.preventDefault(); handler(); });

submits("ask", send);
on("question", "keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
});
on("stop", "click", () => state.busy && state.busy.abort());
on("fresh", "click", () => { freshConversation(); $("question").focus(); });
submits("add", addFact);
submits("find", searchMemory);
on("all", "click", () => { $("query").value = ""; showMemory(); $("query").focus(); });
on("more", "click", () => showMemory(state.next));
submits("who", () => { showTyped(); $("question").focus(); });
on("user", "change", takeTyped);
submits("keyform", () => {
  apiKey = $("key").value.trim();
  remember("inferscale-key", apiKey);
  $("key").value = "";
  $("access").open = false;
  meet();
});
submits("forget-form", forget);
on("forget-no", "click", () => { $("forget").close(); });
on("forget", "close", () => { state.forgetting = null; });
document.addEventListener("visibilitychange", () => { if (!document.hidden) pollMetrics(); });

state.user = recalled("inferscale-user") || "default";
$("user").value = state.user;
meet();
