/* test_serve_kill.c - `kill -9` of `inferscale serve` while clients write and converse, again and again on one store: every write that was
 * answered with 200 is there after the restart, nothing that was answered as forgotten is, what was under way is one or the other; the
 * next turn of each conversation finds what was placed before it; fsck finds nothing. What is placed is rows of both stages: the second
 * is made before the first kill, however slow the disk is. With INFERSCALE_SOAK=seconds as long as that. */
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/scratch.h"
#include "support/serve_program.h"
#include "support/soak.h"
#include "support/store_kit.h"

enum { WRITERS = 3, TALKERS = 2, ITEMS = 65536, KEEP = 24, TURNS = 6, PLACED = 64, ROUNDS = 14, GONE = 0, THERE = 1, EITHER = 2 };

static serve_program server;
static unsigned long acknowledged, turns_told, means_placed; /* atomic: of all clients */
static unsigned long kills, early_kills, resumed;

/* ---- Clients that write --------------------------------------------------------------------------------------------------- */

typedef struct item {
    unsigned char state;
    bool forgetting;       /* it was asked to be forgotten */
    bool forgotten;        /* gone for good: in no file any more */
    unsigned instead;      /* the text that takes its place, in doubt; 0 = none */
    unsigned before;       /* the text that it took the place of; 0 = none */
    char id[24];
} item;

typedef struct writer {
    int n;
    unsigned long long seed;
    pthread_t thread;
    unsigned n_items;
    char trouble[400];
    item items[ITEMS];     /* [0] is none */
} writer;

static writer writers[WRITERS];

/* The word zq.. is the text's alone: it is found by it, and looked for in the files. */
static const char *text_of(const writer *w, unsigned serial, char out[100])
{
    snprintf(out, 100, "Text zq%05uw%d is about one of many lamps.", serial, w->n);
    return out;
}

/* 0: not this writer's. */
static unsigned serial_of(const writer *w, const char *text)
{
    const char *at = text ? strstr(text, "zq") : NULL;
    unsigned serial;
    int n;

    return at && sscanf(at, "zq%5uw%d", &serial, &n) == 2 && n == w->n && serial < w->n_items ? serial : 0;
}

static void mark_forgotten(writer *w, unsigned serial)
{
    w->items[serial].state = GONE;
    for (; serial; serial = w->items[serial].before) w->items[serial].forgotten = true;
}

/* One that is there, or 0. */
static unsigned some_item(writer *w)
{
    unsigned there[KEEP + 8], n = 0;

    for (unsigned s = w->n_items - 1; s > 0 && n < KEEP + 8; s--)
        if (w->items[s].state == THERE) there[n++] = s;
    return n ? there[scratch_below(&w->seed, n)] : 0;
}

static unsigned count_there(const writer *w)
{
    unsigned n = 0;

    for (unsigned s = 1; s < w->n_items; s++) n += w->items[s].state == THERE;
    return n;
}

/* True: acknowledged. False: the server died, or there is trouble. */
static bool send(writer *w, const char *method, const char *target, json_t *body, json_t **reply)
{
    char *text = body ? json_dumps(body, 0) : NULL;
    serve_reply r = serve_program_call(&server, method, target, NULL, text);
    int status = r.status;

    if (status && status != 200) snprintf(w->trouble, sizeof w->trouble, "%s %s %.100s: %d %.150s", method, target, text ? text : "", status, r.body);
    if (reply) *reply = json_incref(r.json);
    if (status == 200) __atomic_add_fetch(&acknowledged, 1, __ATOMIC_RELAXED);
    serve_reply_free(&r);
    json_decref(body);
    free(text);
    return status == 200;
}

static bool add(writer *w)
{
    unsigned n = 1 + scratch_below(&w->seed, 3), first = w->n_items;
    json_t *messages = json_array(), *reply = NULL;
    char text[100];

    for (unsigned i = 0; i < n; i++) {
        w->items[w->n_items] = (item){ .state = EITHER };
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", text_of(w, w->n_items++, text)));
    }
    bool done = send(w, "POST", "/memories", json_pack("{s:o,s:o,s:b}", "messages", messages, "user_id", json_sprintf("w%d", w->n), "infer", 0), &reply);
    for (unsigned i = 0; done && i < n; i++) {
        const char *id = json_string_value(json_object_get(json_array_get(json_object_get(reply, "results"), i), "id"));

        if (!id) snprintf(w->trouble, sizeof w->trouble, "no id of text %u", first + i);
        snprintf(w->items[first + i].id, sizeof w->items->id, "%s", id ? id : "");
        w->items[first + i].state = THERE;
    }
    json_decref(reply);
    return done;
}

static bool change(writer *w, unsigned serial)
{
    unsigned next = w->n_items++;
    char target[80], text[100];

    w->items[next] = (item){ .state = EITHER, .before = serial };
    memcpy(w->items[next].id, w->items[serial].id, sizeof w->items->id);
    w->items[serial].state = EITHER;
    w->items[serial].instead = next;
    snprintf(target, sizeof target, "/memories/%s?user_id=w%d", w->items[serial].id, w->n);
    if (!send(w, "PUT", target, json_pack("{s:s}", "text", text_of(w, next, text)), NULL)) return false;
    w->items[serial].state = GONE;
    w->items[serial].instead = 0;
    w->items[next].state = THERE;
    return true;
}

static bool forget(writer *w, unsigned serial)
{
    char target[80];
    bool done;

    w->items[serial].state = EITHER;
    w->items[serial].forgetting = true;
    if (scratch_below(&w->seed, 2)) {
        snprintf(target, sizeof target, "/memories/%s?user_id=w%d", w->items[serial].id, w->n);
        done = send(w, "DELETE", target, NULL, NULL);
    } else {
        done = send(w, "POST", "/inferscale/forget", json_pack("{s:o,s:[s]}", "user_id", json_sprintf("w%d", w->n), "ids", w->items[serial].id), NULL);
    }
    if (done) mark_forgotten(w, serial);
    return done;
}

static void *write_on(void *ctx)
{
    writer *w = ctx;
    bool alive = true;

    while (alive && !*w->trouble && w->n_items < ITEMS - 10) {
        unsigned there = count_there(w), dice = there > KEEP ? 9 : scratch_below(&w->seed, 10), serial = dice < 5 ? 0 : some_item(w);

        alive = !serial ? add(w) : dice < 7 ? change(w, serial) : forget(w, serial);
    }
    return NULL;
}

/* ---- Clients that converse ------------------------------------------------------------------------------------------------ */

typedef struct talker {
    int n;
    unsigned long long seed;
    pthread_t thread;
    unsigned number;            /* of conversations begun */
    size_t n_turns;             /* of this one, answered */
    json_t *messages;
    char placed[PLACED][40];    /* "ID v VERSION" of the facts placed so far, as the last answer named them */
    size_t n_placed;
    bool was_killed;            /* since the last answer */
    unsigned long resumed;
    char trouble[600];
} talker;

static talker talkers[TALKERS];

/* The text of a streamed reply, and its last `memory`; NULL: it did not come to its end. */
static json_t *streamed(const serve_reply *r, json_t **memory)
{
    json_t *text = json_string("");
    bool over = false;
    size_t n = serve_events(r);

    for (size_t i = 0; i < n; i++) {
        char *event = serve_event(r, i);
        json_t *o = json_loads(event, 0, NULL), *m = json_object_get(o, "memory");
        const char *piece = json_string_value(json_object_get(json_object_get(json_array_get(json_object_get(o, "choices"), 0), "delta"), "content"));

        over |= strcmp(event, "[DONE]") == 0;
        if (m) {
            json_decref(*memory);
            *memory = json_incref(m);
        }
        if (piece) {
            json_t *longer = json_sprintf("%s%s", json_string_value(text), piece);

            json_decref(text);
            text = longer;
        }
        json_decref(o);
        free(event);
    }
    if (over) return text;
    json_decref(text);
    return NULL;
}

static void look(talker *t, json_t *memory)
{
    json_t *placed = json_object_get(memory, "placed"), *facts = json_object_get(memory, "facts");
    size_t kept = (size_t)json_integer_value(json_object_get(placed, "kept")), fresh = (size_t)json_integer_value(json_object_get(placed, "new"));
    size_t n = json_array_size(facts);

    if (kept < t->n_turns || kept + fresh != t->n_turns + 1 || json_integer_value(json_object_get(placed, "lost")))
        snprintf(t->trouble, sizeof t->trouble, "turn %zu of talk %u: kept %zu, new %zu", t->n_turns, t->number, kept, fresh);
    for (size_t i = 0; i < n && i < PLACED; i++) {
        const char *policy = json_string_value(json_object_get(json_array_get(facts, i), "policy"));
        char name[40];

        if (policy && strncmp(policy, "company:", 8) == 0) __atomic_add_fetch(&means_placed, 1, __ATOMIC_RELAXED);
        snprintf(name, sizeof name, "%s v %lld", json_string_value(json_object_get(json_array_get(facts, i), "id")),
                 (long long)json_integer_value(json_object_get(json_array_get(facts, i), "version")));
        if (i < t->n_placed && strcmp(name, t->placed[i]) != 0)
            snprintf(t->trouble, sizeof t->trouble, "turn %zu of talk %u: fact %zu is %s, was %s", t->n_turns, t->number, i, name, t->placed[i]);
        memcpy(t->placed[i], name, sizeof name);
    }
    if (n < t->n_placed || n > PLACED || n == 0)
        snprintf(t->trouble, sizeof t->trouble, "turn %zu of talk %u: %zu facts after %zu", t->n_turns, t->number, n, t->n_placed);
    t->n_placed = n;
}

static bool turn(talker *t)
{
    int stream = (int)scratch_below(&t->seed, 2);
    json_t *body, *memory = NULL, *said = NULL;

    /* The question in doubt is sent again. */
    if (json_array_size(t->messages) == 2 * t->n_turns)
        json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", "user", "content", json_sprintf("Question %zu of talk %u: what of topic %u?",
                                                                                                      t->n_turns, t->number, scratch_below(&t->seed, 6))));
    body = json_pack("{s:O,s:i,s:i,s:b,s:{s:o,s:i}}", "messages", t->messages, "max_tokens", 12, "temperature", 0, "stream", stream, "memory", "user_id",
                     json_sprintf("talker%d", t->n), "k", 2);
    char *text = json_dumps(body, 0);
    serve_reply r = serve_program_call(&server, "POST", "/v1/chat/completions", NULL, text);
    if (r.status == 200 && stream) {
        said = streamed(&r, &memory);
    } else if (r.status == 200) {
        memory = json_incref(json_object_get(r.json, "memory"));
        said = json_incref(json_object_get(json_object_get(json_array_get(json_object_get(r.json, "choices"), 0), "message"), "content"));
    } else if (r.status) {
        snprintf(t->trouble, sizeof t->trouble, "%d: %.300s", r.status, r.body);
    }
    if (said) {
        look(t, memory);
        t->resumed += t->was_killed && t->n_turns > 0;
        t->was_killed = false;
        t->n_turns++;
        json_array_append_new(t->messages, json_pack("{s:s,s:O}", "role", "assistant", "content", said));
        __atomic_add_fetch(&turns_told, 1, __ATOMIC_RELAXED);
    }
    bool told = said != NULL;
    json_decref(said);
    json_decref(memory);
    json_decref(body);
    free(text);
    serve_reply_free(&r);
    return told;
}

static void *talk_on(void *ctx)
{
    talker *t = ctx;

    do {
        if (t->n_turns >= TURNS || !t->messages) {
            json_decref(t->messages);
            t->messages = json_array();
            t->n_turns = t->n_placed = 0;
            t->number++;
        }
    } while (turn(t) && !*t->trouble);
    return NULL;
}

static void remember_topics(void)
{
    for (int n = 0; n < TALKERS; n++)
        for (int topic = 0; topic < 6; topic++) {
            char body[200];

            snprintf(body, sizeof body, "{\"user_id\": \"talker%d\", \"text\": \"Talker %d has said this of topic %d.\"}", n, n, topic);
            serve_reply r = serve_program_call(&server, "POST", "/memories", NULL, body);
            assert_int_equal(r.status, 200);
            serve_reply_free(&r);
        }
}

/* Left to idle time the second stage would come where the disk is fast, and nowhere else. */
static void refine_topics(void)
{
    for (int n = 0; n < TALKERS; n++) {
        char body[80];

        snprintf(body, sizeof body, "{\"user_id\": \"talker%d\", \"stage\": \"all\"}", n);
        serve_reply r = serve_program_call(&server, "POST", "/inferscale/encode", NULL, body);
        if (r.status != 200) fail_msg("the topics are not encoded: %d %.200s", r.status, r.body);
        serve_reply_free(&r);
    }
}

/* ---- After a kill --------------------------------------------------------------------------------------------------------- */

static void settle(writer *w, const unsigned char *there)
{
    for (unsigned s = 1; s < w->n_items; s++) {
        item *x = &w->items[s];

        if (there[s] > 1) fail_msg("text %u of writer %d is there %u times", s, w->n, there[s]);
        if (x->state == THERE && !there[s]) fail_msg("text %u of writer %d was acknowledged and is lost", s, w->n);
        if (x->state == GONE && there[s]) fail_msg("text %u of writer %d was taken back and is there", s, w->n);
        if (x->instead && there[s] == there[x->instead]) fail_msg("texts %u and %u of writer %d: both or neither", s, x->instead, w->n);
    }
    for (unsigned s = 1; s < w->n_items; s++) {
        item *x = &w->items[s];

        if (x->state == EITHER && x->forgetting && !there[s]) mark_forgotten(w, s);
        x->state = there[s] ? THERE : GONE;
        x->forgetting = false;
        if (x->instead && there[s]) w->items[x->instead].before = 0; /* it never came */
        x->instead = 0;
    }
}

static void find_one(writer *w)
{
    unsigned serial = some_item(w);
    char body[200];
    bool found = false;

    if (!serial) return;
    snprintf(body, sizeof body, "{\"user_id\": \"w%d\", \"query\": \"zq%05uw%d\"}", w->n, serial, w->n);
    serve_reply r = serve_program_call(&server, "POST", "/search", NULL, body);
    json_t *results = json_object_get(r.json, "results");
    for (size_t i = 0; i < json_array_size(results); i++)
        found |= serial_of(w, json_string_value(json_object_get(json_array_get(results, i), "memory"))) == serial;
    if (!found) fail_msg("text %u of writer %d is not found: %d %.300s", serial, w->n, r.status, r.body);
    serve_reply_free(&r);
}

/* What the restarted server tells, against what was acknowledged. */
static void check(writer *w)
{
    static unsigned char there[ITEMS];
    char target[80];

    memset(there, 0, sizeof there);
    snprintf(target, sizeof target, "/memories?user_id=w%d&limit=1000", w->n);
    serve_reply r = serve_program_call(&server, "GET", target, NULL, NULL);
    if (r.status != 200) fail_msg("%s: %d %.200s", target, r.status, r.body);
    json_t *results = json_object_get(r.json, "results");
    for (size_t i = 0; i < json_array_size(results); i++) {
        json_t *o = json_array_get(results, i);
        const char *text = json_string_value(json_object_get(o, "memory")), *id = json_string_value(json_object_get(o, "id"));
        unsigned s = serial_of(w, text);

        if (!s) fail_msg("\"%s\" was never written by writer %d", text, w->n);
        if (*w->items[s].id && strcmp(w->items[s].id, id) != 0) fail_msg("text %u has id %s, was told %s", s, id, w->items[s].id);
        snprintf(w->items[s].id, sizeof w->items->id, "%s", id);
        there[s]++;
    }
    serve_reply_free(&r);
    settle(w, there);
    find_one(w);
}

/* Texts that were forgotten are in no file. */
static unsigned long words_seen;

static int look_into(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    size_t n = 0;
    (void)sb;
    (void)ftw;
    if (type != FTW_F) return 0;
    char *bytes = store_read(path, &n);
    for (char *at = bytes; (at = memmem(at, n - (size_t)(at - bytes), "zq", 2)) != NULL; at += 2) {
        char word[12] = "";
        unsigned serial;
        int of;

        memcpy(word, at, n - (size_t)(at - bytes) < 11 ? n - (size_t)(at - bytes) : 11);
        if (sscanf(word, "zq%5uw%1d", &serial, &of) != 2 || of >= WRITERS || !serial || serial >= writers[of].n_items) continue;
        words_seen++;
        if (writers[of].items[serial].forgotten) fail_msg("%s holds forgotten text %u of writer %d", path, serial, of);
    }
    free(bytes);
    return 0;
}

/* ---- Rounds --------------------------------------------------------------------------------------------------------------- */

static unsigned long done_so_far(void)
{
    return __atomic_load_n(&acknowledged, __ATOMIC_RELAXED) + __atomic_load_n(&turns_told, __ATOMIC_RELAXED);
}

static void work_and_kill(unsigned long long *seed)
{
    unsigned long enough = done_so_far() + scratch_below(seed, 60);
    double patience = is_now_ms() + 30000;

    for (int i = 0; i < WRITERS; i++) assert_int_equal(pthread_create(&writers[i].thread, NULL, write_on, &writers[i]), 0);
    for (int i = 0; i < TALKERS; i++) assert_int_equal(pthread_create(&talkers[i].thread, NULL, talk_on, &talkers[i]), 0);
    while (done_so_far() < enough && is_now_ms() < patience) usleep(1000);
    usleep(scratch_below(seed, 20000));
    serve_program_kill(&server);
    kills++;
    for (int i = 0; i < WRITERS; i++) pthread_join(writers[i].thread, NULL);
    for (int i = 0; i < TALKERS; i++) pthread_join(talkers[i].thread, NULL);
    for (int i = 0; i < WRITERS; i++)
        if (*writers[i].trouble) fail_msg("writer %d: %s", i, writers[i].trouble);
    for (int i = 0; i < TALKERS; i++) {
        if (*talkers[i].trouble) fail_msg("talker %d: %s", i, talkers[i].trouble);
        talkers[i].was_killed = true;
    }
}

static const char *const options[] = { "--policy", "facts:2" };

/* A start that is killed, too. */
static void kill_while_it_starts(const char *home, unsigned long long *seed, double usual_ms)
{
    serve_program_spawn(&server, home, options[0], options[1], NULL);
    usleep(1000 * scratch_below(seed, 1 + (unsigned)(1.2 * usual_ms)));
    serve_program_kill(&server);
    early_kills++;
}

/* How much gets done before a kill is luck; a round that saw nothing has shown nothing. */
static bool enough_done(void)
{
    unsigned long gone_on = 0;

    for (int i = 0; i < TALKERS; i++) gone_on += talkers[i].resumed;
    return acknowledged > 100 && turns_told > 20 && gone_on > 3 && means_placed > 0;
}

static bool is_over(unsigned round, double end)
{
    if (writers[0].n_items >= ITEMS - 1000) return true;
    if (soak_seconds() > 0) return is_now_ms() >= end;
    return round >= ROUNDS && (enough_done() || round >= 4 * ROUNDS);
}

/* Looked at as the killed server left it: nothing is damaged. Opening for writing ends what was
 * interrupted; then nothing is left to find. */
static void expect_sound_again(const char *home)
{
    inferscale_fsck_report *r = store_fsck(home, false);

    if (!r->ok) {
        store_print(r);
        fail_msg("the killed server left damage");
    }
    inferscale_fsck_free(r);
    inferscale_close(store_open(home, NULL, NULL, false));
    store_expect_sound(home);
}

static void the_server_is_killed(void **state)
{
    unsigned long long seed = scratch_seed("kill the server");
    char *home = scratch_make();
    double end = is_now_ms() + 1000.0 * soak_seconds(), longest = 0;

    (void)state;
    for (int i = 0; i < WRITERS; i++) writers[i].n = i, writers[i].n_items = 1, writers[i].seed = scratch_next(&seed);
    for (int i = 0; i < TALKERS; i++) talkers[i].n = i, talkers[i].seed = scratch_next(&seed);
    serve_program_start(&server, home, options[0], options[1], NULL);
    remember_topics();
    refine_topics();
    for (unsigned round = 0; !is_over(round, end); round++) {
        work_and_kill(&seed);
        if (round % 3 == 1) kill_while_it_starts(home, &seed, server.ready_ms);
        if (round % 3 == 2) expect_sound_again(home); /* else the server itself is the first to open it */
        serve_program_start(&server, home, options[0], options[1], NULL);
        longest = server.ready_ms > longest ? server.ready_ms : longest;
        for (int i = 0; i < WRITERS; i++) check(&writers[i]);
    }
    serve_program_end(&server);
    store_expect_sound(home);
    assert_int_equal(nftw(home, look_into, 16, FTW_PHYS), 0);
    scratch_remove(home);
    for (int i = 0; i < TALKERS; i++) {
        resumed += talkers[i].resumed;
        json_decref(talkers[i].messages);
    }
    print_message("%lu kills under load, %lu while it started; %lu writes acknowledged, %lu turns told with %lu means placed, %lu conversations went on "
                  "over a kill; ready after %.0f ms at most\n", kills, early_kills, acknowledged, turns_told, means_placed, resumed, longest);
    assert_true(enough_done() && words_seen > 0);
    soak_report("serve_kill", "\"points\":%lu,\"faults\":%lu,\"acknowledged\":%lu,\"resumed\":%lu,\"ready_ms_most\":%.0f,\"lost\":0", kills + early_kills,
                kills + early_kills, acknowledged, resumed, longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_server_is_killed) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
