/* test_memory_isolation.c - keys and owners: a key that is bound names nobody else by any way; random owners at once never see each other's
 * memory; a search beside updates and deletions never gives what was taken back before it began. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

#define KEY(name) "X-API-Key: key-of-" name "-0123456789\r\n"

static serve_kit *kit;
static char *folder;

static json_t *call(const char *headers, const char *method, const char *target, const char *body, int want)
{
    serve_reply r = serve_call(kit, method, target, headers, body);
    json_t *o = json_incref(r.json);

    if (r.status != want || !o) fail_msg("%s %s %.200s: %d, not %d: %.300s", method, target, body ? body : "", r.status, want, r.body);
    serve_reply_free(&r);
    return o;
}

static void expect(const char *headers, const char *method, const char *target, const char *body, int want)
{
    json_decref(call(headers, method, target, body, want));
}

static const char *text(json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s ? s : "";
}

static json_t *result(json_t *reply, size_t i) { return json_array_get(json_object_get(reply, "results"), i); }
static size_t n_results(json_t *reply) { return json_array_size(json_object_get(reply, "results")); }

static int start(void **state)
{
    const char *path;
    FILE *f;

    (void)state;
    folder = scratch_make();
    path = scratch_path(folder, "keys");
    f = fopen(path, "w");
    fprintf(f, "key-of-admin-0123456789 admin\nkey-of-anna-0123456789 user=anna\nkey-of-bot-0123456789 agent=bot\n"
               "key-of-acme-0123456789 tenant=acme\nkey-of-other-0123456789 tenant=other\nkey-of-free-0123456789\n");
    fclose(f);
    chmod(path, 0600);
    kit = serve_start("keys", path, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    serve_stop(kit);
    scratch_remove(folder);
    return 0;
}

static void add(const char *headers, const char *body, char id[24])
{
    json_t *o = call(headers, "POST", "/memories", body, 200);

    snprintf(id, 24, "%s", text(result(o, 0), "id"));
    json_decref(o);
}

/* ---- Keys ------------------------------------------------------------------------------------------------------------------ */

static void a_bound_key_names_nobody_else(void **state)
{
    static const struct { const char *method, *target, *body; int status; } tries[] = {
        { "POST", "/memories", "{\"text\": \"x\", \"user_id\": \"ben\"}", 403 },
        { "POST", "/memories", "{\"text\": \"x\", \"filters\": {\"user_id\": \"ben\"}}", 403 },
        { "POST", "/v3/memories/add/", "{\"messages\": \"x\", \"filters\": {\"AND\": [{\"user_id\": \"ben\"}]}}", 403 },
        { "POST", "/search", "{\"query\": \"stamps\", \"user_id\": \"ben\"}", 403 },
        { "POST", "/v3/memories/search/", "{\"query\": \"stamps\", \"filters\": {\"user_id\": \"ben\"}}", 403 },
        { "POST", "/v3/memories/", "{\"filters\": {\"user_id\": \"ben\"}}", 403 },
        { "GET", "/memories?user_id=ben", NULL, 403 },
        { "GET", "/v1/memories/?user_id=ben", NULL, 403 },
        { "DELETE", "/memories?user_id=ben", NULL, 403 },
        { "DELETE", "/v2/entities/user/ben/", NULL, 403 },
        { "POST", "/reset", NULL, 403 },
        { "POST", "/reset", "{\"confirm\": true}", 403 },
        { "POST", "/inferscale/forget", "{\"user_id\": \"ben\", \"all\": true}", 403 },
        { "GET", "/inferscale/export?user_id=ben", NULL, 403 },
        { "POST", "/inferscale/import?user_id=ben", "{\"text\": \"x\"}", 403 },
        { "GET", "/inferscale/encode?user_id=ben", NULL, 403 },
        { "GET", "/inferscale/usage?user_id=ben", NULL, 403 },
        { "POST", "/inferscale/dry-run", "{\"question\": \"x\", \"user_id\": \"ben\"}", 403 },
        { "POST", "/mcp?user_id=ben", "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}", 403 },
    };
    char ben[24], mine[24], target[80], body[200];
    json_t *o;

    (void)state;
    add(KEY("admin"), "{\"text\": \"Ben collects stamps.\", \"user_id\": \"ben\"}", ben);
    add(KEY("anna"), "{\"text\": \"Anna keeps bees.\"}", mine);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) expect(KEY("anna"), tries[i].method, tries[i].target,
                                                                     tries[i].body, tries[i].status);
    expect(KEY("anna") "X-Inferscale-User: ben\r\n", "GET", "/memories", NULL, 403);
    snprintf(target, sizeof target, "/memories/%s", ben);
    expect(KEY("anna"), "GET", target, NULL, 404);
    expect(KEY("anna"), "PUT", target, "{\"text\": \"mine\"}", 404);
    expect(KEY("anna"), "DELETE", target, NULL, 404);
    snprintf(body, sizeof body, "{\"memories\": [{\"memory_id\": \"%s\"}]}", ben);
    expect(KEY("anna"), "DELETE", "/v1/batch/", body, 404);
    snprintf(body, sizeof body, "{\"ids\": [\"%s\"]}", ben);
    o = call(KEY("anna"), "POST", "/inferscale/forget", body, 404);
    assert_int_equal(json_integer_value(json_object_get(o, "forgotten")), 0);
    json_decref(o);
    o = call(KEY("anna"), "GET", "/memories", NULL, 200);
    assert_int_equal(n_results(o), 1);
    assert_string_equal(text(result(o, 0), "id"), mine);
    json_decref(o);
    o = call(KEY("anna"), "GET", "/v1/entities/", NULL, 200);
    assert_int_equal(n_results(o), 1);
    assert_string_equal(text(result(o, 0), "name"), "anna");
    json_decref(o);
    expect(KEY("anna"), "DELETE", "/memories", NULL, 400); /* bound or not: a name must be said */
    o = call(KEY("admin"), "GET", target, NULL, 200);
    assert_string_equal(text(o, "memory"), "Ben collects stamps.");
    json_decref(o);
    o = call(KEY("anna"), "GET", "/inferscale/info", NULL, 200);
    assert_null(json_object_get(o, "store"));
    json_decref(o);
    o = call(KEY("anna"), "GET", "/inferscale/usage", NULL, 200);
    assert_null(json_object_get(o, "vault_bytes"));
    json_decref(o);
}

/* A key of an agent reads the agent's own partition; a user beside it would open that user's. */
static void an_agents_key_opens_no_user(void **state)
{
    char id[24];

    (void)state;
    add(KEY("bot"), "{\"text\": \"The bot's own.\"}", id);
    expect(KEY("bot"), "GET", "/memories?user_id=ben", NULL, 403);
    expect(KEY("bot"), "POST", "/inferscale/import", "{\"text\": \"x\", \"user\": \"ben\"}", 403);
    expect(KEY("bot"), "POST", "/inferscale/import", "{\"text\": \"fine\", \"run\": \"r1\"}", 200);
}

static void tenants_do_not_meet(void **state)
{
    char acme[24], other[24], free_one[24], target[80];
    json_t *o;

    (void)state;
    add(KEY("acme"), "{\"text\": \"Acme's Zoe.\", \"user_id\": \"zoe\"}", acme);
    add(KEY("other"), "{\"text\": \"Other's Zoe.\", \"user_id\": \"zoe\"}", other);
    add(KEY("free"), "{\"text\": \"Nobody's Zoe.\", \"user_id\": \"zoe\"}", free_one);
    o = call(KEY("acme"), "GET", "/memories?user_id=zoe", NULL, 200);
    assert_int_equal(n_results(o), 1);
    assert_string_equal(text(result(o, 0), "memory"), "Acme's Zoe.");
    json_decref(o);
    snprintf(target, sizeof target, "/memories/%s", acme);
    expect(KEY("acme"), "GET", target, NULL, 200);
    expect(KEY("other"), "GET", target, NULL, 404);
    expect(KEY("other"), "DELETE", target, NULL, 404);
    expect(KEY("free"), "GET", target, NULL, 404);
    expect(KEY("free"), "PUT", target, "{\"text\": \"x\"}", 404);
    snprintf(target, sizeof target, "/memories/%s", free_one);
    expect(KEY("acme"), "GET", target, NULL, 404);
    o = call(KEY("acme"), "GET", "/v1/entities/", NULL, 200);
    for (size_t i = 0; i < n_results(o); i++) assert_string_equal(text(result(o, i), "tenant"), "acme");
    json_decref(o);
    expect(KEY("acme"), "GET", "/inferscale/usage", NULL, 400); /* of everybody: not for this key */
    expect(KEY("acme"), "POST", "/inferscale/import", "{\"text\": \"x\", \"user\": \"zoe\"}", 400);
}

static void without_a_key_nothing_is_told(void **state)
{
    static const char *const targets[] = { "/memories?user_id=anna", "/memories/1", "/v1/ping/", "/v1/entities/", "/inferscale/info",
                                           "/inferscale/export?user_id=anna" };

    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        expect(NULL, "GET", targets[i], NULL, 401);
        expect(KEY("nobody"), "GET", targets[i], NULL, 401);
    }
}

/* ---- At once --------------------------------------------------------------------------------------------------------------- */

enum { USERS = 4, TURNS = 60 };

typedef struct user {
    int n;
    unsigned long long seed;
    pthread_t thread;
    char trouble[300];
    char ids[TURNS][24];
    size_t n_ids;
} user;

static int ask(user *u, const char *method, const char *target, const char *body, json_t **out)
{
    serve_reply r = serve_call(kit, method, target, KEY("admin"), body);
    int status = r.status;

    *out = json_incref(r.json);
    serve_reply_free(&r);
    (void)u;
    return status;
}

/* Every text of a reply must be this user's. */
static void look(user *u, json_t *reply)
{
    char mine[24];

    snprintf(mine, sizeof mine, "of user %d ", u->n);
    for (size_t i = 0; i < n_results(reply); i++)
        if (!strstr(text(result(reply, i), "memory"), mine))
            snprintf(u->trouble, sizeof u->trouble, "user %d got \"%s\"", u->n, text(result(reply, i), "memory"));
}

static void turn(user *u, int i)
{
    char target[120], body[300];
    json_t *o = NULL;
    int status = 200, want = 200;
    size_t k = u->n_ids ? scratch_below(&u->seed, (unsigned)u->n_ids) : 0;

    switch (u->n_ids ? scratch_below(&u->seed, 6) : 0) {
    case 0:
        snprintf(body, sizeof body, "{\"user_id\": \"crowd-%d\", \"text\": \"Word of user %d number %d.\"}", u->n, u->n, i);
        status = ask(u, "POST", "/memories", body, &o);
        if (status == 200) snprintf(u->ids[u->n_ids++], 24, "%s", text(result(o, 0), "id"));
        break;
    case 1:
        snprintf(body, sizeof body, "{\"user_id\": \"crowd-%d\", \"query\": \"Word of user\"}", u->n);
        status = ask(u, "POST", "/search", body, &o);
        break;
    case 2:
        snprintf(target, sizeof target, "/memories?user_id=crowd-%d", u->n);
        status = ask(u, "GET", target, NULL, &o);
        break;
    case 3:
        snprintf(target, sizeof target, "/memories/%s?user_id=crowd-%d", u->ids[k], u->n);
        snprintf(body, sizeof body, "{\"text\": \"Changed word of user %d number %d.\"}", u->n, i);
        status = ask(u, "PUT", target, body, &o);
        break;
    case 4: /* somebody else's, by their number */
        snprintf(target, sizeof target, "/memories/%s?user_id=crowd-%d", u->ids[k], (u->n + 1) % USERS);
        status = ask(u, scratch_below(&u->seed, 2) ? "GET" : "DELETE", target, NULL, &o);
        want = 404;
        break;
    default:
        snprintf(target, sizeof target, "/memories/%s?user_id=crowd-%d", u->ids[k], u->n);
        status = ask(u, "DELETE", target, NULL, &o);
        memmove(u->ids[k], u->ids[--u->n_ids], sizeof u->ids[k]);
    }
    if (status != want) snprintf(u->trouble, sizeof u->trouble, "user %d, turn %d: %d, not %d: %.150s", u->n, i, status, want,
                                 text(o, "detail"));
    look(u, o);
    json_decref(o);
}

static void *live(void *ctx)
{
    user *u = ctx;

    for (int i = 0; i < TURNS && !*u->trouble; i++) turn(u, i);
    return NULL;
}

static void users_at_once_do_not_meet(void **state)
{
    unsigned long long seed = scratch_seed("users_at_once_do_not_meet");
    static user users[USERS];
    char target[80];

    (void)state;
    for (int i = 0; i < USERS; i++) {
        users[i] = (user){ .n = i, .seed = scratch_next(&seed) };
        assert_int_equal(pthread_create(&users[i].thread, NULL, live, &users[i]), 0);
    }
    for (int i = 0; i < USERS; i++) pthread_join(users[i].thread, NULL);
    for (int i = 0; i < USERS; i++) {
        json_t *o;

        if (*users[i].trouble) fail_msg("%s", users[i].trouble);
        snprintf(target, sizeof target, "/memories?user_id=crowd-%d", i);
        o = call(KEY("admin"), "GET", target, NULL, 200);
        assert_int_equal(n_results(o), users[i].n_ids);
        json_decref(o);
    }
}

/* ---- Searching beside changes ---------------------------------------------------------------------------------------------- */

enum { ROUNDS = 40 };
static int taken_back; /* atomic: rounds up to this one are over; their texts must not be found by a search that begins now */

static void *search_on(void *ctx)
{
    char *trouble = ctx;

    while (!*trouble && __atomic_load_n(&taken_back, __ATOMIC_ACQUIRE) < ROUNDS) {
        int before = __atomic_load_n(&taken_back, __ATOMIC_ACQUIRE);
        serve_reply r = serve_call(kit, "POST", "/search", KEY("admin"),
                                   "{\"user_id\": \"beside\", \"query\": \"secret round\", \"top_k\": 100}");

        for (size_t i = 0; i < n_results(r.json); i++) {
            const char *at = strstr(text(result(r.json, i), "memory"), "secret round ");

            if (at && atoi(at + 13) <= before) snprintf(trouble, 200, "after %d: \"%s\"", before, text(result(r.json, i), "memory"));
        }
        if (r.status != 200) snprintf(trouble, 200, "status %d", r.status);
        serve_reply_free(&r);
    }
    return NULL;
}

/* Each round a text is added and taken back, by deletion or by another text. */
static void what_was_taken_back_is_not_found(void **state)
{
    pthread_t threads[2];
    static char trouble[2][200];
    char id[24], target[80], body[200];

    (void)state;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, search_on, trouble[i]), 0);
    for (int round = 1; round <= ROUNDS; round++) {
        serve_reply r;

        snprintf(body, sizeof body, "{\"user_id\": \"beside\", \"text\": \"The secret round %d.\"}", round);
        r = serve_call(kit, "POST", "/memories", KEY("admin"), body);
        snprintf(id, sizeof id, "%s", text(result(r.json, 0), "id"));
        serve_reply_free(&r);
        snprintf(target, sizeof target, "/memories/%s?user_id=beside", id);
        snprintf(body, sizeof body, "{\"text\": \"Nothing of %d to be seen.\"}", round);
        r = serve_call(kit, round % 2 ? "DELETE" : "PUT", target, KEY("admin"), round % 2 ? NULL : body);
        if (r.status != 200) snprintf(trouble[0], 200, "round %d: %d", round, r.status);
        serve_reply_free(&r);
        __atomic_store_n(&taken_back, round, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (*trouble[i]) fail_msg("%s", trouble[i]);
}

/* Last: it takes everything. */
static void reset_takes_everybodys(void **state)
{
    static const char *const targets[] = { "/memories?user_id=anna", "/memories?user_id=ben", "/memories?agent_id=bot",
                                           "/memories?user_id=crowd-1" };
    json_t *o;

    (void)state;
    expect(KEY("free"), "POST", "/reset", NULL, 403);
    o = call(KEY("admin"), "POST", "/reset", NULL, 200);
    assert_true(json_integer_value(json_object_get(o, "deleted")) > 0);
    json_decref(o);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        o = call(KEY("admin"), "GET", targets[i], NULL, 200);
        assert_int_equal(n_results(o), 0);
        json_decref(o);
    }
    o = call(KEY("acme"), "GET", "/memories?user_id=zoe", NULL, 200);
    assert_int_equal(n_results(o), 0);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bound_key_names_nobody_else),
        cmocka_unit_test(an_agents_key_opens_no_user),
        cmocka_unit_test(tenants_do_not_meet),
        cmocka_unit_test(without_a_key_nothing_is_told),
        cmocka_unit_test(users_at_once_do_not_meet),
        cmocka_unit_test(what_was_taken_back_is_not_found),
        cmocka_unit_test(reset_takes_everybodys),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
