/* test_serve_isolation.c - owners, keys and tenants at once over every face of the server: each owner's memory holds a marker word, and no reply,
 * header, log line, metric or run of the engine ever shows a marker where it does not belong; a key that is bound opens nobody else's; what is
 * cached for one owner never makes another one's answer quicker. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "serve/log.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

enum { WORKERS = 6, REQUESTS = 500, MOST_MS = 40000, IDS = 4096, NOBODY = -1, KEYS = 10, N_ACTS = 13 };

#define KEY(name) "X-API-Key: key-of-" name "-0123456789\r\n"

static const char keys_text[] =
    "key-of-admin-0123456789 admin\nkey-of-anna-0123456789 user=anna\nkey-of-ben-0123456789 user=ben\nkey-of-bot-0123456789 agent=bot\n"
    "key-of-acme-anna-0123456789 tenant=acme user=anna\nkey-of-umbra-anna-0123456789 tenant=umbra user=anna\n"
    "key-of-acme-0123456789 tenant=acme\nkey-of-umbra-0123456789 tenant=umbra\nkey-of-free-0123456789\nkey-of-run-0123456789 run=r7\n";

/* Names are the same in several tenants. bound: the key that can mean nobody else; wide: one that must name the owner. */
typedef struct owner { const char *member, *header, *name, *bound, *wide; } owner;
static const owner owners[] = {
    { "user_id", "User", "anna", KEY("anna"), KEY("free") },       { "user_id", "User", "ben", KEY("ben"), KEY("admin") },
    { "agent_id", "Agent", "bot", KEY("bot"), KEY("free") },       { "user_id", "User", "anna", KEY("acme-anna"), KEY("acme") },
    { "user_id", "User", "zoe", NULL, KEY("acme") },               { "user_id", "User", "anna", KEY("umbra-anna"), KEY("umbra") },
    { "user_id", "User", "zoe", NULL, KEY("umbra") },              { "run_id", "Run", "r7", KEY("run"), KEY("free") },
    { "user_id", "User", "zoe", NULL, KEY("free") },               { "agent_id", "Agent", "anna", NULL, KEY("free") },
};
enum { OWNERS = sizeof owners / sizeof *owners };

static serve_kit *kit;
static char *folder;
static unsigned long long salt;   /* of the markers */

/* Ids that were told, by owner. */
static pthread_mutex_t ids_lock = PTHREAD_MUTEX_INITIALIZER;
static char ids[OWNERS][IDS][24];
static unsigned n_ids[OWNERS];

/* ---- Markers --------------------------------------------------------------------------------------------------------------- */

static const char *marker(int of, char out[24])
{
    unsigned long long s = salt + (unsigned)of;

    snprintf(out, 24, "zq%02dk%08x", of, (unsigned)scratch_next(&s));
    return out;
}

/* The owner of the first marker that is not `mine`'s, or NOBODY; counts mine. */
static int foreign(const char *text, size_t n, int mine, unsigned long *own)
{
    const char *end = text + n;

    for (const char *at = text; at && (at = memmem(at, (size_t)(end - at), "zq", 2)) != NULL && end - at >= 13; at += 2) {
        char word[24], want[24];

        snprintf(word, sizeof word, "%.13s", at);
        for (int of = 0; of < OWNERS; of++) {
            if (strcmp(word, marker(of, want)) != 0) continue;
            if (of != mine) return of;
            ++*own;
        }
    }
    return NOBODY;
}

/* ---- The log ---------------------------------------------------------------------------------------------------------------- */

static unsigned long log_lines, log_markers; /* of the log's thread; read when it has ended */

static void on_line(void *ctx, const char *line, size_t len)
{
    unsigned long own = 0;

    (void)ctx;
    log_lines++;
    if (foreign(line, len, NOBODY, &own) != NOBODY) log_markers++;
}

/* ---- Requests --------------------------------------------------------------------------------------------------------------- */

typedef struct worker {
    int n;
    unsigned long long seed;
    pthread_t thread;
    double end;
    json_t *talks[OWNERS];
    unsigned long seen[N_ACTS], done[N_ACTS]; /* markers of the owner's own, and requests, by what was done */
    int act;
    char trouble[800];
} worker;

static unsigned below(worker *w, unsigned n) { return scratch_below(&w->seed, n); }

/* Whose the reply is: an owner's number, or NOBODY. want, also: statuses that may be. */
static serve_reply request(worker *w, int whose, const char *headers, const char *method, const char *target, const char *body, int want, int also)
{
    serve_reply r = serve_call(kit, method, target, headers, body);
    int in_head = foreign(r.head ? r.head : "", r.head ? strlen(r.head) : 0, NOBODY, &w->seen[w->act]);
    int in_body = foreign(r.body, r.n, whose, &w->seen[w->act]);

    w->done[w->act]++;
    if (in_head != NOBODY || in_body != NOBODY)
        snprintf(w->trouble, sizeof w->trouble, "%s %s of owner %d tells owner %d's: %.150s -> %.400s", method, target, whose,
                 in_head != NOBODY ? in_head : in_body, body ? body : "", r.body);
    else if (r.status != want && r.status != also)
        snprintf(w->trouble, sizeof w->trouble, "%s %s of owner %d: %d, not %d: %.200s -> %.300s", method, target, whose, r.status, want, body ? body : "", r.body);
    return r;
}

/* Headers by which this owner is meant: a bound key alone, or a wide one with the name. */
static const char *as(worker *w, int of, char out[200])
{
    const owner *o = &owners[of];
    bool bound = o->bound && below(w, 2), named = !bound || below(w, 2);

    snprintf(out, 200, "%s", bound ? o->bound : o->wide);
    if (named) snprintf(out + strlen(out), 200 - strlen(out), "X-Inferscale-%s: %s\r\n", o->header, o->name);
    return out;
}

static void ask(worker *w, int of, const char *method, const char *target, const char *body, int also)
{
    char headers[200];
    serve_reply r = request(w, of, as(w, of, headers), method, target, body, 200, also);

    serve_reply_free(&r);
}

static bool some_id(worker *w, int of, char out[24])
{
    pthread_mutex_lock(&ids_lock);
    bool there = n_ids[of] > 0;
    if (there) memcpy(out, ids[of][below(w, n_ids[of])], 24);
    pthread_mutex_unlock(&ids_lock);
    return there;
}

static void add(worker *w, int of)
{
    char headers[200], body[300], word[24];

    snprintf(body, sizeof body, "{\"text\": \"The green lamp %s number %u stands in the garden.\", \"infer\": false}", marker(of, word), below(w, 100000));
    serve_reply r = request(w, of, as(w, of, headers), "POST", "/memories", body, 200, 200);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(r.json, "results"), 0), "id"));
    pthread_mutex_lock(&ids_lock);
    if (id && n_ids[of] < IDS) snprintf(ids[of][n_ids[of]++], 24, "%s", id);
    pthread_mutex_unlock(&ids_lock);
    serve_reply_free(&r);
}

static void search(worker *w, int of)
{
    if (below(w, 2)) ask(w, of, "POST", "/search", "{\"query\": \"green lamp in the garden\"}", 200);
    else ask(w, of, "POST", "/v3/memories/search/", "{\"query\": \"lamp number 7\", \"top_k\": 50, \"explain\": true}", 200);
}

static void list(worker *w, int of)
{
    static const char *const gets[] = { "/memories", "/v1/memories/", "/inferscale/export", "/v1/entities/" };
    unsigned which = below(w, 5);
    if (which == 4) ask(w, of, "POST", "/v3/memories/", "{}", 200);
    else ask(w, of, "GET", gets[which], NULL, 200);
}

static void one(worker *w, int of)
{
    char id[24], target[80];

    if (!some_id(w, of, id)) return;
    snprintf(target, sizeof target, below(w, 2) ? "/memories/%s" : "/memories/%s/history", id);
    ask(w, of, "GET", target, NULL, 404); /* it may have been deleted */
}

static void change(worker *w, int of)
{
    char id[24], target[80], body[200], word[24];

    if (!some_id(w, of, id)) return;
    snprintf(target, sizeof target, "/memories/%s", id);
    snprintf(body, sizeof body, "{\"text\": \"The lamp %s was painted %u times.\"}", marker(of, word), below(w, 100000));
    if (below(w, 3)) ask(w, of, "PUT", target, body, 404);
    else ask(w, of, "DELETE", target, NULL, 404);
}

/* The same words from everybody, whole or streamed, injected or as text; conversations of up to four turns. */
static void chat(worker *w, int of)
{
    static const char *const questions[] = { "Which lamp is green?", "Where does the lamp stand?", "And what number?", "Who painted it?" };
    static const char *const modes[] = { "kv", "kv", "text", "none" };
    int stream = (int)below(w, 3) == 0;
    char headers[200];

    if (!w->talks[of] || json_array_size(w->talks[of]) >= 8) {
        json_decref(w->talks[of]);
        w->talks[of] = json_array();
    }
    json_array_append_new(w->talks[of], json_pack("{s:s,s:s}", "role", "user", "content", questions[json_array_size(w->talks[of]) / 2]));
    json_t *o = json_pack("{s:O,s:i,s:i,s:b,s:{s:i,s:s}}", "messages", w->talks[of], "temperature", 0, "max_tokens", 60, "stream", stream, "memory", "k", 3,
                          "mode", modes[below(w, 4)]);
    char *body = json_dumps(o, 0);
    serve_reply r = request(w, of, as(w, of, headers), "POST", "/v1/chat/completions", body, 200, 200);
    json_t *said = json_object_get(json_object_get(json_array_get(json_object_get(r.json, "choices"), 0), "message"), "content");
    if (said) json_array_append_new(w->talks[of], json_pack("{s:s,s:O}", "role", "assistant", "content", said));
    else json_array_remove(w->talks[of], json_array_size(w->talks[of]) - 1);
    serve_reply_free(&r);
    json_decref(o);
    free(body);
}

static void no_memory(worker *w, int of)
{
    char headers[200];
    bool text = below(w, 2);
    serve_reply r = request(w, NOBODY, as(w, of, headers), "POST", text ? "/v1/completions" : "/v1/embeddings",
                            text ? "{\"prompt\": \"The green lamp\", \"max_tokens\": 40, \"temperature\": 0}" : "{\"input\": \"green lamp\"}", 200, 200);

    serve_reply_free(&r);
}

static void own(worker *w, int of)
{
    switch (below(w, 4)) {
    case 0: ask(w, of, "POST", "/inferscale/dry-run", "{\"question\": \"Which lamp is green?\", \"k\": 5}", 200); break;
    case 1: ask(w, of, "GET", "/inferscale/usage", NULL, 200); break;
    case 2: ask(w, of, "GET", "/inferscale/encode", NULL, 200); break;
    default: ask(w, of, "GET", "/inferscale/info", NULL, 200);
    }
}

static void mcp(worker *w, int of)
{
    char body[400], id[24] = "1";
    unsigned which = below(w, 3);

    some_id(w, of, id);
    snprintf(body, sizeof body, "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"%s\", \"arguments\": {%s%s%s}}}",
             which == 0 ? "search_memories" : which == 1 ? "list_memories" : "get_memory",
             which == 0 ? "\"query\": \"green lamp\"" : which == 1 ? "" : "\"id\": \"", which == 2 ? id : "", which == 2 ? "\"" : "");
    ask(w, of, "POST", "/mcp", body, 200);
}

/* ---- Requests that must be refused ------------------------------------------------------------------------------------------ */

/* A bound key that names another owner, in any place. */
static void name_another(worker *w, int of)
{
    static const struct { const char *method, *target, *body; } tries[] = {
        { "POST", "/memories", "{\"text\": \"x\", \"%s\": \"%s\"}" },
        { "POST", "/search", "{\"query\": \"green lamp\", \"%s\": \"%s\"}" },
        { "POST", "/search", "{\"query\": \"green lamp\", \"filters\": {\"%s\": \"%s\"}}" },
        { "POST", "/v3/memories/search/", "{\"query\": \"lamp\", \"filters\": {\"AND\": [{\"%s\": \"%s\"}]}}" },
        { "POST", "/v3/memories/", "{\"filters\": {\"%s\": \"%s\"}}" },
        { "POST", "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"Which lamp?\"}], \"memory\": {\"%s\": \"%s\"}}" },
        { "POST", "/inferscale/dry-run", "{\"question\": \"Which lamp is green?\", \"%s\": \"%s\"}" },
        { "POST", "/inferscale/forget", "{\"all\": true, \"%s\": \"%s\"}" },
        { "GET", "/memories?%s=%s", NULL }, { "DELETE", "/memories?%s=%s", NULL }, { "GET", "/inferscale/export?%s=%s", NULL },
        { "POST", "/mcp?%s=%s", "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}" },
    };
    const owner *o = &owners[of];
    unsigned i = below(w, sizeof tries / sizeof *tries);
    const char *other = below(w, 2) ? "ben-not" : "zoe";
    char target[120], body[300];

    if (!o->bound) return;
    snprintf(target, sizeof target, tries[i].body ? "%s" : tries[i].target, tries[i].body ? tries[i].target : o->member, other);
    snprintf(body, sizeof body, tries[i].body ? tries[i].body : "", o->member, other);
    if (tries[i].body && strchr(tries[i].target, '?')) snprintf(target, sizeof target, "/mcp?%s=%s", o->member, other);
    serve_reply r = request(w, NOBODY, o->bound, tries[i].method, target, tries[i].body ? body : NULL, 403, 404);
    serve_reply_free(&r);
}

/* Another owner's memory by its id. */
static void reach_by_id(worker *w, int of)
{
    static const char *const methods[] = { "GET", "PUT", "DELETE" };
    int other = (of + 1 + (int)below(w, OWNERS - 1)) % OWNERS;
    unsigned which = below(w, 6);
    char id[24], target[80], headers[200], body[200];

    if (!some_id(w, other, id)) return;
    as(w, of, headers);
    if (which < 3) {
        snprintf(target, sizeof target, "/memories/%s", id);
        serve_reply r = request(w, NOBODY, headers, methods[which], target, which == 1 ? "{\"text\": \"stolen\"}" : NULL, 404, 404);
        serve_reply_free(&r);
    } else if (which == 3) {
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Which lamp?\"}], \"memory\": {\"ids\": [\"%s\"]}}", id);
        serve_reply r = request(w, NOBODY, headers, "POST", "/v1/chat/completions", body, 404, 404);
        serve_reply_free(&r);
    } else if (which == 4) {
        snprintf(body, sizeof body, "{\"ids\": [\"%s\"]}", id);
        serve_reply r = request(w, NOBODY, headers, "POST", "/inferscale/forget", body, 200, 404);
        if (r.status == 200 && json_integer_value(json_object_get(r.json, "forgotten")) != 0)
            snprintf(w->trouble, sizeof w->trouble, "owner %d has forgotten what is owner %d's", of, other);
        serve_reply_free(&r);
    } else {
        snprintf(body, sizeof body, "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"%s\", \"arguments\": {\"id\": \"%s\"}}}",
                 below(w, 2) ? "get_memory" : "delete_memory", id);
        serve_reply r = request(w, NOBODY, headers, "POST", "/mcp", body, 200, 200);
        if (!json_is_true(json_object_get(json_object_get(r.json, "result"), "isError")))
            snprintf(w->trouble, sizeof w->trouble, "owner %d reaches owner %d's: %.300s", of, other, r.body);
        serve_reply_free(&r);
    }
}

static void metrics(worker *w, int of)
{
    serve_reply r = request(w, NOBODY, KEY("admin"), "GET", "/metrics", NULL, 200, 200);

    (void)of;
    serve_reply_free(&r);
}

/* ---- The storm -------------------------------------------------------------------------------------------------------------- */

static void (*const acts[N_ACTS])(worker *w, int of) = { add, search, list, one, change, chat, chat, no_memory, own, mcp, name_another, reach_by_id,
                                                         metrics };

static void *storm(void *ctx)
{
    worker *w = ctx;

    for (int i = 0; i < REQUESTS && !*w->trouble && is_now_ms() < w->end; i++) {
        w->act = i < OWNERS ? 0 : (int)below(w, N_ACTS);
        acts[w->act](w, i < OWNERS ? (i + w->n) % OWNERS : (int)below(w, OWNERS));
    }
    return NULL;
}

/* What the engine computed on: no run and no capture holds two owners' markers. */
static void check_witness(const char *path, unsigned long *runs_seen)
{
    enum { RUNS = 1 << 20 };
    signed char *of_run = malloc(RUNS);
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    assert_non_null(f);
    assert_non_null(of_run);
    memset(of_run, NOBODY, RUNS);
    while ((n = getline(&line, &cap, f)) > 0) {
        unsigned long run = 0, own_ones;
        int in_line = NOBODY;

        if (sscanf(line, "%*s %*s %lu", &run) != 1 || run >= RUNS) continue;
        for (int of = 0; of < OWNERS && in_line == NOBODY; of++) {
            own_ones = 0;
            if (foreign(line, (size_t)n, of, &own_ones) == NOBODY) {
                if (own_ones) in_line = of;
            } else if (own_ones) {
                fail_msg("one call of the engine holds two owners' memory: %.600s", line);
            }
        }
        own_ones = 0;
        if (in_line == NOBODY && foreign(line, (size_t)n, NOBODY, &own_ones) != NOBODY) fail_msg("one call, two owners: %.600s", line);
        if (in_line == NOBODY) continue;
        ++*runs_seen;
        if (run && of_run[run] != NOBODY && of_run[run] != in_line) fail_msg("run %lu holds memory of owners %d and %d", run, of_run[run], in_line);
        if (run) of_run[run] = (signed char)in_line;
    }
    free(line);
    free(of_run);
    fclose(f);
}

static const char *keys_file(void)
{
    const char *path = scratch_path(folder, "keys");
    FILE *f = fopen(path, "w");

    fputs(keys_text, f);
    fclose(f);
    chmod(path, 0600);
    return path;
}

static void nobody_sees_anybody(void **state)
{
    unsigned long long seed = scratch_seed("nobody_sees_anybody");
    static worker workers[WORKERS];
    unsigned long seen[N_ACTS] = { 0 }, done[N_ACTS] = { 0 }, all = 0, runs_seen = 0;
    char witness[600], option[700];

    (void)state;
    salt = scratch_next(&seed);
    snprintf(witness, sizeof witness, "%s", scratch_path(folder, "witness"));
    snprintf(option, sizeof option, "witness=%s", witness);
    setenv("INFERSCALE_MOCK", option, 1);
    OK(is_serve_log_start(IS_LOG_FORM_JSON, on_line, NULL));
    kit = serve_start("keys", keys_file(), "parallel", "4", "audit", "0.2", NULL);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){ .n = i, .seed = scratch_next(&seed), .end = is_now_ms() + MOST_MS };
        assert_int_equal(pthread_create(&workers[i].thread, NULL, storm, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i].thread, NULL);
    serve_stop(kit);
    is_serve_log_stop();
    unsetenv("INFERSCALE_MOCK");
    for (int i = 0; i < WORKERS; i++) {
        if (*workers[i].trouble) fail_msg("%s", workers[i].trouble);
        for (int k = 0; k < OWNERS; k++) json_decref(workers[i].talks[k]);
        for (int k = 0; k < N_ACTS; k++) seen[k] += workers[i].seen[k], done[k] += workers[i].done[k], all += workers[i].done[k];
    }
    check_witness(witness, &runs_seen);
    print_message("%lu requests, %lu chats (%lu of the owner's own markers in them), %lu names and ids refused, %lu log lines, %lu calls of the engine on "
                  "memory\n", all, done[5] + done[6], seen[5] + seen[6], done[10] + done[11], log_lines, runs_seen);
    assert_int_equal(log_markers, 0);
    assert_true(log_lines >= all / 2 && runs_seen > 20);
    for (int k = 0; k < N_ACTS; k++) assert_true(done[k] > 0);
    for (int k = 0; k < N_ACTS; k++) /* each face does show its owner's */
        if (acts[k] == search || acts[k] == list || acts[k] == one || acts[k] == mcp || acts[k] == chat) assert_true(seen[k] > 0);
}

/* ---- Caches ----------------------------------------------------------------------------------------------------------------- */

typedef struct told { long long resident, prompt; char text[400]; } told;

/* One turn; before: what was answered to the turn before it, or NULL. */
static told tell(const char *headers, const char *mode, const char *before)
{
    json_t *messages = json_array(), *o;
    told t = { 0 };

    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "Which lamp in the garden is the green one?"));
    if (before) {
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "assistant", "content", before));
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "And who painted it?"));
    }
    o = json_pack("{s:o,s:i,s:i}", "messages", messages, "temperature", 0, "max_tokens", 30);
    if (mode) json_object_set_new(o, "memory", json_pack("{s:s,s:i}", "mode", mode, "k", 3));
    char *body = json_dumps(o, 0);
    serve_reply r = serve_call(kit, "POST", "/v1/chat/completions", headers, body);
    if (r.status != 200) fail_msg("%d: %s", r.status, r.body);
    json_t *tokens = json_object_get(json_object_get(r.json, "memory"), "tokens"), *usage = json_object_get(r.json, "usage");
    t.prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    t.resident = tokens ? json_integer_value(json_object_get(tokens, "resident"))
                        : json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    snprintf(t.text, sizeof t.text, "%s",
             json_string_value(json_object_get(json_object_get(json_array_get(json_object_get(r.json, "choices"), 0), "message"), "content")));
    serve_reply_free(&r);
    json_decref(o);
    free(body);
    return t;
}

/* Both owners remember the same words, ask the same, and go on with the same answer: the second is served as if the first never was. What is
 * shared is the header, which is the server's own text. */
static void what_is_cached_is_the_owners(void **state)
{
    static const char *const modes[] = { "kv", "text" }, *const who[] = { KEY("anna"), KEY("ben"), KEY("acme-anna"), KEY("umbra-anna"), KEY("bot") };

    (void)state;
    kit = serve_start("keys", keys_file(), NULL);
    for (size_t i = 0; i < sizeof who / sizeof *who; i++)
        for (int n = 0; n < 3; n++) {
            char body[200];
            snprintf(body, sizeof body, "{\"text\": \"The lamp number %d in the garden is green.\"}", n);
            serve_reply r = serve_call(kit, "POST", "/memories", who[i], body);
            assert_int_equal(r.status, 200);
            serve_reply_free(&r);
        }
    tell(KEY("run"), "kv", NULL);
    long long header = tell(KEY("free") "X-Inferscale-User: fresh\r\n", "kv", NULL).resident; /* of two who remember nothing */
    assert_true(header > 0);
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
            told first = tell(who[i], modes[m], NULL);
            if (first.resident > header) fail_msg("mode %s: owner %zu's first question finds %lld tokens, the header has %lld", modes[m], i, first.resident, header);
            for (size_t k = 0; k < i; k++) { /* who said the same before does go on */
                told on = tell(who[k], modes[m], first.text);
                if (on.prompt <= first.prompt) fail_msg("the conversation did not go on");
            }
            told go_on = tell(who[(i + 1) % (sizeof who / sizeof *who)], modes[m], first.text); /* the next one, who has not asked in this mode */
            if (i + 1 < sizeof who / sizeof *who && go_on.resident > header)
                fail_msg("mode %s: owner %zu goes on with owner %zu's conversation: %lld tokens are there", modes[m], i + 1, i, go_on.resident);
            told mine = tell(who[i], modes[m], first.text);
            if (mine.resident <= header) fail_msg("mode %s: owner %zu's own conversation is not there: the test would see nothing", modes[m], i);
        }
    serve_stop(kit);
}

/* Where nobody's memory is meant there is no partition: then keys keep their conversations apart. */
static void conversations_without_memory_are_the_keys(void **state)
{
    static const char *const others[] = { KEY("umbra"), KEY("admin") };

    (void)state;
    kit = serve_start("keys", keys_file(), NULL);
    told first = tell(KEY("acme"), NULL, NULL);
    long long header = tell(KEY("free"), NULL, NULL).resident;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        told other = tell(others[i], NULL, first.text);
        if (other.resident > header) fail_msg("key %zu goes on with acme's conversation: %lld tokens are there, the header has %lld", i, other.resident, header);
    }
    if (tell(KEY("acme"), NULL, first.text).resident <= header) fail_msg("acme's own is not there: the test would see nothing");
    serve_stop(kit);
}

static int start(void **state)
{
    (void)state;
    folder = scratch_make();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sees_anybody),
        cmocka_unit_test(what_is_cached_is_the_owners),
        cmocka_unit_test(conversations_without_memory_are_the_keys),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
