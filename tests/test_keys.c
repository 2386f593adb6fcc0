/* API keys and the scopes they are bound to: the file, its reload under load, what headers name, and that a bound key reaches no other
 * partition however it asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/keys.h"
#include "serve/scope.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

#define K1 "isk_0123456789abcdef"
#define K2 "isk_fedcba9876543210"

static char *folder;

static const char *put(const char *text)
{
    const char *path = scratch_path(folder, "keys"), *aside = scratch_path(folder, "keys.new");
    FILE *f = fopen(aside, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(aside, 0600);
    assert_int_equal(rename(aside, path), 0);
    return path;
}

static void bad(const char *text, const char *part)
{
    is_keys *k = NULL;
    is_status st = is_keys_open(put(text), &k);
    if (st != INFERSCALE_E_PARSE || !strstr(is_error(), part))
        fail_msg("\"%s\" gave %s: %s", text, inferscale_status_name(st), is_error());
    assert_null(strstr(is_error(), K1)); /* what an error says goes to logs */
    assert_null(k);
}

static void what_is_wrong_in_a_keys_file_is_said_with_its_line(void **state)
{
    bad("", "empty");
    bad("# nothing\n\n", "no key");
    bad("short\n", "line 1");
    bad(K1 "\n\nfifteen_bytes__\n", "line 3");
    bad(K1 " admn\n", "admn");
    bad(K1 " user\n", "user");
    bad(K1 " user=\n", "1 to 512");
    bad(K1 " user=\"\"\n", "1 to 512");
    bad(K1 " user=\"a b\n", "quote");
    bad(K1 " user=a user=b\n", "twice");
    bad(K1 " owner=a\n", "owner");
    bad(K1 " admin user=a\n", "admin");
    bad(K1 " admin tenant=a\n", "admin");
    bad(K1 " user=\xff\n", "UTF-8");
    bad(K1 "\n" K1 " admin\n", "line 2");
    bad("isk_\xc3\xa9_0123456789abcdef\n", "ASCII");
    char long_one[2000];
    memset(long_one, 'k', sizeof long_one);
    memcpy(long_one + 600, "\n", 2);
    bad(long_one, "512");
    snprintf(long_one, sizeof long_one, "%s user=%0513d\n", K1, 1);
    bad(long_one, "1 to 512 bytes");
}

/* As many as there may be: comparing each with each would take minutes, in the thread that serves everybody. */
static void a_hundred_thousand_keys_are_told_apart(void **state)
{
    enum { MANY = 100000 };
    char *text = calloc(MANY + 2, 40), *p = text;
    is_keys *k = NULL;
    is_key may;
    assert_non_null(text);
    for (int i = 0; i < MANY; i++) p += snprintf(p, 40, "isk_%020d user=u%d\n", i, i);
    OK(is_keys_open(put(text), &k));
    for (int i = 0; i < MANY; i += MANY / 7) {
        char key[40], user[16];
        snprintf(key, sizeof key, "isk_%020d", i);
        snprintf(user, sizeof user, "u%d", i);
        assert_true(is_keys_find(k, key, &may));
        assert_string_equal(may.user, user);
    }
    is_keys_close(k);
    snprintf(p, 40, K1 "\n");
    bad(text, "line 100001: more than");
    memcpy(text + 4, "00000000000000099999", 20); /* the first line's key is the last one's, the second's the fifth's */
    memcpy(strchr(text, '\n') + 5, "00000000000000000004", 20);
    *p = '\0';
    bad(text, "line 5: this key is there twice");
    free(text);
}

static void only_its_owner_may_read_a_keys_file(void **state)
{
    is_keys *k = NULL;
    const char *path = put(K1 "\n");
    static const mode_t open_to[] = { 0640, 0604, 0620, 0602, 0644, 0666 };
    for (size_t i = 0; i < sizeof open_to / sizeof *open_to; i++) {
        chmod(path, open_to[i]);
        FAILS(E_DENIED, is_keys_open(path, &k));
        assert_non_null(strstr(is_error(), "chmod 600"));
    }
    FAILS(E_NOTFOUND, is_keys_open(scratch_path(folder, "none"), &k));
    FAILS(E_INVALID, is_keys_open(folder, &k));
}

static void keys_say_what_they_may_do(void **state)
{
    is_keys *k = NULL;
    is_key may;
    OK(is_keys_open(put("  # all kinds\r\n" K1 " admin # the boss\r\n" K2 "\tuser=\"Anna of K\" agent=x\n"
                        "isk_tenant_0123456789 tenant=acme\nisk_plain_01234567890"),
                    &k));
    assert_true(is_keys_find(k, K1, &may));
    assert_true(may.admin && !may.bound && !*may.tenant);
    assert_true(is_keys_find(k, K2, &may));
    assert_true(!may.admin && may.bound);
    assert_string_equal(may.user, "Anna of K");
    assert_string_equal(may.agent, "x");
    assert_int_equal(strlen(may.name), 10);
    assert_null(strstr(K2, may.name));
    assert_true(is_keys_find(k, "isk_tenant_0123456789", &may));
    assert_true(!may.admin && !may.bound);
    assert_string_equal(may.tenant, "acme");
    assert_true(is_keys_find(k, "isk_plain_01234567890", &may));
    static const char *const none[] = { "",  " ",        "isk_0123456789abcde", K1 "0", "ISK_0123456789ABCDEF", "admin",
                                        "#", K1 " admin" };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_false(is_keys_find(k, none[i], &may));
    char huge[5000];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_false(is_keys_find(k, huge, &may));
    is_keys_close(k);
}

/* ---- Reload -------------------------------------------------------------------------------------------------------------- */

static atomic_int stop_asking, lost, asked, errors_logged;
static is_keys *shared;

static void *ask_all_the_time(void *ctx)
{
    while (!atomic_load(&stop_asking)) {
        is_key a, b;
        bool one = is_keys_find(shared, K1, &a), other = is_keys_find(shared, K2, &b);
        if (!one || strcmp(a.user, "anna") != 0 || (other && strcmp(b.user, "ben") != 0)) atomic_fetch_add(&lost, 1);
        atomic_fetch_add(&asked, 1);
    }
    return NULL;
}

static void count_errors(void *ctx, int level, const char *message)
{
    if (level == IS_LOG_ERROR) atomic_fetch_add(&errors_logged, 1);
    assert_null(strstr(message, "isk_"));
}

static bool comes(const char *key, bool there)
{
    is_key may;
    for (int i = 0; i < 400; i++) {
        if (is_keys_find(shared, key, &may) == there) return true;
        usleep(10000);
    }
    return false;
}

static void keys_are_read_again_while_they_are_used(void **state)
{
    pthread_t threads[4];
    OK(is_keys_open(put(K1 " user=anna\n"), &shared));
    is_log_set(count_errors, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, ask_all_the_time, NULL), 0);
    put(K1 " user=anna\n" K2 " user=ben\n");
    assert_true(comes(K2, true));
    put(K1 " user=anna\n");
    assert_true(comes(K2, false)); /* a key that was taken out is dead within seconds */
    const char *path = put(K1 " user=anna\n" K2 " user=ben\nbroken\n");
    usleep(1500000);
    assert_true(comes(K2, false)); /* the old keys are in force */
    usleep(1500000);
    assert_int_equal(atomic_load(&errors_logged), 1); /* said once */
    unlink(path);
    usleep(1500000);
    FILE *f = fopen(path, "w"); /* half written: empty */
    fclose(f);
    chmod(path, 0600);
    usleep(1500000);
    put(K1 " user=anna\n" K2 " user=ben\n");
    assert_true(comes(K2, true));
    atomic_store(&stop_asking, 1);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&lost), 0);
    assert_true(atomic_load(&asked) > 100);
    is_log_set(NULL, NULL);
    is_keys_close(shared);
}

static atomic_int hold_reads, reads_held;

static is_status held_open(const is_fs *fs, const char *path, int mode, is_file **out)
{
    (void)fs;
    if (atomic_load(&hold_reads)) atomic_store(&reads_held, 1);
    while (atomic_load(&hold_reads)) usleep(1000);
    return is_fs_posix()->open(is_fs_posix(), path, mode, out);
}

/* A keys file on a disk that does not answer: the keys that are known are answered meanwhile. */
static void no_key_waits_for_the_file(void **state)
{
    is_fs slow = *is_fs_posix();
    is_keys *k = NULL;
    is_key may;

    (void)state;
    slow.open = held_open;
    is_fs_set_default(&slow);
    OK(is_keys_open(put(K1 " user=anna\n"), &k));
    atomic_store(&hold_reads, 1);
    put(K1 " user=anna\n" K2 " user=ben\n");
    while (!atomic_load(&reads_held)) usleep(1000);
    for (int i = 0; i < 100; i++)
        assert_true(is_keys_find(k, K1, &may) && !is_keys_find(k, K2, &may));
    atomic_store(&hold_reads, 0);
    while (!is_keys_find(k, K2, &may)) usleep(1000);
    is_keys_close(k);
    is_fs_set_default(NULL);
}

static void put_in_place(const char *text, size_t n)
{
    FILE *f = fopen(scratch_path(folder, "keys"), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

/* Cut anywhere "KEY user=anna" is a line that opens every owner, or another one's memory. */
static void a_file_that_is_being_written_opens_nothing(void **state)
{
    static const char whole[] = K1 " user=anna\n" K2 " user=anna\n";
    const size_t n = sizeof whole - 1, cuts[] = { n - 11, n - 10, n - 4, n - 3, n - 2 };
    is_keys *k = NULL;
    is_key may;
    OK(is_keys_open(put(K1 " user=anna\n"), &k));
    for (int step = 0; step < 40; step++) {
        double before = is_now_ms();
        put_in_place(whole, cuts[step % 5]);
        usleep(50000);
        bool found = is_keys_find(k, K2, &may);
        if (is_now_ms() - before > 200) { /* a busy machine: it stood still, as a file does that is whole */
            put(K1 " user=anna\n");
            for (int i = 0; i < 1000 && is_keys_find(k, K2, &may); i++) usleep(10000);
            step = -1;
        } else if (found) fail_msg("step %d: a line cut at %zu of %zu opens \"%s\"", step, cuts[step % 5], n, may.user);
    }
    put_in_place(whole, n);
    for (int i = 0; i < 1000 && !is_keys_find(k, K2, &may); i++) usleep(10000);
    assert_string_equal(may.user, "anna");
    is_keys_close(k);
}

/* ---- Through HTTP -------------------------------------------------------------------------------------------------------- */

static void whose(is_server *s, is_request *r)
{
    is_owner o;
    size_t n;
    json_t *from = NULL;
    is_request_body(r, &n);
    if (n && !(from = is_request_json(r))) return;
    if (is_scope_read(r, from, &o) != INFERSCALE_OK) return;
    is_reply_json(r, 200,
                  json_pack("{s:s?,s:s?,s:s?,s:s?,s:s?,s:b}", "tenant", o.scope.tenant, "user", o.scope.user, "agent",
                            o.scope.agent, "run", o.scope.run, "app", o.scope.app, "given", o.given));
}

static void fine(is_server *s, is_request *r) { is_reply_json(r, 200, json_pack("{s:b}", "keyed", is_request_key(r) != NULL)); }

static const is_route routes[] = {
    { "POST", "/whose", whose, IS_FACE_OPENAI, 0 },
    { "GET", "/admin-only", fine, IS_FACE_OPENAI, IS_ROUTE_ADMIN },
    { "GET", "/any-key", fine, IS_FACE_MEMORY, 0 },
    { "GET", "/open", fine, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { 0 },
};

static void call(const serve_kit *k, int status, const char *target, const char *headers)
{
    serve_reply r = serve_call(k, "GET", target, headers, NULL);
    if (r.status != status) fail_msg("%s with %s gave %d, not %d", target, headers ? headers : "-", r.status, status);
    assert_true((status == 401) == (serve_head(&r, "WWW-Authenticate") != NULL));
    serve_reply_free(&r);
}

static void a_key_opens_what_it_may_and_no_more(void **state)
{
    is_server_set_extra(routes);
    serve_kit *k = serve_start("keys", put(K1 " admin\n" K2 " user=anna\nisk_plain_01234567890\n"), NULL);
    call(k, 200, "/open", NULL);
    call(k, 200, "/open", "Authorization: Bearer nonsense\r\n");
    call(k, 401, "/any-key", NULL);
    call(k, 401, "/any-key", "Authorization: Bearer \r\n");
    call(k, 401, "/any-key", "Authorization: Bearer isk_0123456789abcdee\r\n");
    call(k, 401, "/any-key", "Authorization: Basic " K1 "\r\n");
    call(k, 401, "/any-key", "Authorization: " K1 "\r\n");
    call(k, 401, "/any-key", "Authorization: Bearer " K1 "\r\nX-API-Key: " K2 "\r\n");
    call(k, 400, "/any-key", "Authorization: Bearer " K1 "\r\nAuthorization: Bearer " K2 "\r\n");
    call(k, 401, "/any-key?api_key=" K1, NULL); /* never in a URL: those are logged everywhere */
    call(k, 200, "/any-key", "Authorization: Bearer " K1 "\r\n");
    call(k, 200, "/any-key", "authorization: bearer  " K1 "\r\n");
    call(k, 200, "/any-key", "Authorization: Token " K2 "\r\n");
    call(k, 200, "/any-key", "X-API-Key: " K2 "\r\n");
    call(k, 200, "/any-key", "X-API-Key: " K2 "\r\nAuthorization: Token " K2 "\r\n");
    call(k, 200, "/admin-only", "X-API-Key: " K1 "\r\n");
    call(k, 403, "/admin-only", "X-API-Key: " K2 "\r\n");
    call(k, 403, "/admin-only", "X-API-Key: isk_plain_01234567890\r\n");
    call(k, 401, "/admin-only", NULL);
    call(k, 200, "/any-key", "X-API-Key: " K1 "\r\nOrigin: https://app.example\r\n"); /* a page that has a key was given one */
    serve_stop(k);
}

static const char *const kinds[] = { "user", "agent", "run", "app" };

/* What the random request says for one name: in one, several or none of the three places. */
typedef struct said {
    const char *body, *query, *header;
} said;

static const char *pick(unsigned long long *rng)
{
    static const char *const names[] = { "anna", "ben", "a b", "caf\xc3\xa9", "anna2", "Anna", "x" };
    return scratch_below(rng, 3) ? NULL : names[scratch_below(rng, 7)];
}

static void escape(const char *s, char *to)
{
    for (; *s; s++) to += snprintf(to, 4, "%%%02x", (unsigned char)*s);
    *to = '\0';
}

/* The oracle: what a key bound so may do with what was said. False = refused. */
static bool allowed(const char *const bound[4], const char *const chosen[4], const char *out[4])
{
    int owner = -1;
    for (int i = 3; i >= 0; i--)
        if (bound[i]) owner = i;
    for (int i = 0; i < 4; i++) {
        out[i] = bound[i] ? bound[i] : chosen[i];
        if (bound[i] && chosen[i] && strcmp(bound[i], chosen[i]) != 0) return false;
        if (!bound[i] && chosen[i] && owner >= 0 && i < owner) return false; /* it would be another partition */
    }
    return true;
}

static void a_bound_key_names_no_other_partition(void **state)
{
    static const struct {
        const char *key, *tenant, *bound[4];
    } keys[] = {
        { "isk_bound_user_0001", NULL, { "anna", NULL, NULL, NULL } },
        { "isk_bound_agent_001", NULL, { NULL, "x", NULL, NULL } },
        { "isk_bound_both_0001", "acme", { "anna", "x", NULL, NULL } },
        { "isk_bound_run_00001", NULL, { NULL, NULL, "ben", NULL } },
        { "isk_bound_app_00001", "acme", { NULL, NULL, NULL, "x" } },
        { "isk_tenant_00000001", "acme", { NULL, NULL, NULL, NULL } },
        { "isk_plain_000000001", NULL, { NULL, NULL, NULL, NULL } },
    };
    unsigned long long rng = scratch_seed("scopes");
    char file[2000] = "";
    for (size_t i = 0; i < 7; i++) {
        size_t n = strlen(file);
        n += (size_t)snprintf(file + n, sizeof file - n, "%s%s%s", keys[i].key, keys[i].tenant ? " tenant=" : "",
                              keys[i].tenant ? keys[i].tenant : "");
        for (int j = 0; j < 4; j++)
            if (keys[i].bound[j]) n += (size_t)snprintf(file + n, sizeof file - n, " %s=%s", kinds[j], keys[i].bound[j]);
        snprintf(file + n, sizeof file - n, "\n");
    }
    is_server_set_extra(routes);
    serve_kit *k = serve_start("keys", put(file), NULL);
    int refused = 0;
    for (int round = 0; round < 600; round++) {
        size_t at = scratch_below(&rng, 7);
        char target[2000] = "/whose?", headers[2000], escaped[200];
        const char *chosen[4], *want[4];
        json_t *body = json_object();
        snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\nX-Inferscale-Tenant: other\r\n", keys[at].key);
        for (int j = 0; j < 4; j++) {
            static const char *const names[] = { "X-Inferscale-User", "X-Inferscale-Agent", "X-Inferscale-Run",
                                                 "X-Inferscale-App" };
            said s = { pick(&rng), pick(&rng), pick(&rng) };
            char member[16];
            snprintf(member, sizeof member, "%s_id", kinds[j]);
            if (s.body) json_object_set_new(body, member, json_string(s.body));
            if (s.query) escape(s.query, escaped);
            if (s.query) snprintf(target + strlen(target), sizeof target - strlen(target), "%s=%s&", member, escaped);
            if (s.header)
                snprintf(headers + strlen(headers), sizeof headers - strlen(headers), "%s: %s\r\n", names[j], s.header);
            chosen[j] = s.body ? s.body : s.query ? s.query : s.header;
        }
        json_object_set_new(body, "tenant", json_string("other")); /* no request names a tenant */
        json_object_set_new(body, "tenant_id", json_string("other"));
        char *text = json_dumps(body, 0);
        serve_reply r = serve_call(k, "POST", target, headers, text);
        if (allowed(keys[at].bound, chosen, want)) {
            if (r.status != 200) fail_msg("%s %s%s gave %d: %s", target, headers, text, r.status, r.body);
            const char *tenant = json_string_value(json_object_get(r.json, "tenant"));
            assert_true(keys[at].tenant ? tenant && strcmp(tenant, keys[at].tenant) == 0 : !tenant);
            for (int j = 0; j < 4; j++) {
                const char *got = json_string_value(json_object_get(r.json, kinds[j]));
                if (want[j] ? !got || strcmp(got, want[j]) != 0 : got != NULL)
                    fail_msg("%s %s%s: %s", target, headers, text, r.body);
            }
        } else {
            if (r.status != 403) fail_msg("%s %s%s gave %d: %s", target, headers, text, r.status, r.body);
            refused++;
        }
        serve_reply_free(&r);
        free(text);
        json_decref(body);
    }
    assert_true(refused > 50);
    /* Names that are none. */
    static const char *const odd[] = { "{\"user_id\": 5}", "{\"user_id\": \"\"}", "{\"user_id\": [\"anna\"]}",
                                       "{\"user_id\": {}}", "{\"user_id\": true}" };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        serve_reply r = serve_call(k, "POST", "/whose", "X-API-Key: isk_plain_000000001\r\n", odd[i]);
        assert_int_equal(r.status, 400);
        serve_reply_free(&r);
    }
    char big[700];
    snprintf(big, sizeof big, "{\"user_id\": \"%0513d\"}", 1);
    serve_reply r = serve_call(k, "POST", "/whose", "X-API-Key: isk_plain_000000001\r\n", big);
    assert_int_equal(r.status, 400);
    serve_reply_free(&r);
    r = serve_call(k, "POST", "/whose", "X-API-Key: isk_plain_000000001\r\nX-Inferscale-User: \xff\r\n", "{}");
    assert_int_equal(r.status, 400);
    serve_reply_free(&r);
    r = serve_call(k, "POST", "/whose", "X-API-Key: isk_plain_000000001\r\n", "{\"user_id\": null}"); /* null is not given */
    assert_int_equal(r.status, 200);
    assert_false(json_is_true(json_object_get(r.json, "given")));
    serve_reply_free(&r);
    serve_stop(k);
}

static int set_up(void **state)
{
    folder = scratch_make();
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_in_a_keys_file_is_said_with_its_line),
        cmocka_unit_test(a_hundred_thousand_keys_are_told_apart),
        cmocka_unit_test(only_its_owner_may_read_a_keys_file),
        cmocka_unit_test(keys_say_what_they_may_do),
        cmocka_unit_test(keys_are_read_again_while_they_are_used),
        cmocka_unit_test(no_key_waits_for_the_file),
        cmocka_unit_test(a_file_that_is_being_written_opens_nothing),
        cmocka_unit_test(a_key_opens_what_it_may_and_no_more),
        cmocka_unit_test(a_bound_key_names_no_other_partition),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
