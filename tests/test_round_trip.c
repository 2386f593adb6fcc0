/* Whatever is accepted is exported, and imported into an empty store it is the same again, all but ids: random memories of every field
 * (texts, metadata, times of all kinds, validity, expiry, pins, attributes, sources), compared as JSON. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/time.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { FACTS = 60, TURNS = 15, ROUNDS = 4 };

static unsigned long long seed;

static size_t below(size_t n) { return (size_t)scratch_below(&seed, (unsigned)n); }
static bool one_in(size_t n) { return below(n) == 0; }

/* ---- Random values ----------------------------------------------------------------------------------------------------------- */

static int64_t a_time(void)
{
    static const int64_t special[] = { INFERSCALE_TIME_ZERO, INFERSCALE_TIME_ZERO, 1, -1, -86400, INT64_C(-2208988800), INT64_C(7289654399),
                                       INT64_C(-62167219200), INT64_C(253402300799), 20240501, 1714571760 };
    const int64_t span = INT64_C(253402300799) + INT64_C(62167219200);

    if (one_in(2)) return special[below(sizeof special / sizeof *special)];
    return is_time_of((int64_t)(scratch_next(&seed) % (uint64_t)span) - INT64_C(62167219200));
}

static int64_t time_or_none(void) { return one_in(3) ? (one_in(2) ? 0 : INFERSCALE_NO_TIME) : a_time(); }

static void a_text(char *out, size_t cap, int i)
{
    static const char *const pieces[] = { "tea ", "\r\n", "\xe2\x80\xa8", "\x7f", "\xef\xbb\xbf", "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d ", "\"", "\\",
                                          "\xf0\x9f\xa5\x9c", "e\xcc\x81", "\t", "<|im_end|>", "20240501", "\x01", "\xc2\xa0", "'--", "{\"a\":1}" };
    size_t n = (size_t)snprintf(out, cap, "%d ", i);
    const size_t want = one_in(8) ? 20000 : 1 + below(60);

    while (n < want && n + 20 < cap) n += (size_t)snprintf(out + n, cap - n, "%s", pieces[below(sizeof pieces / sizeof *pieces)]);
}

static json_t *a_value(int depth)
{
    char text[64];
    json_t *v;

    switch (below(depth > 3 ? 5 : 7)) {
    case 0: return json_integer((json_int_t)scratch_next(&seed));
    case 1: return json_real((double)(int64_t)scratch_next(&seed) / 1e7);
    case 2: return json_boolean(one_in(2));
    case 3: return json_null();
    case 4: return a_text(text, sizeof text, 0), json_string(text);
    case 5:
        v = json_array();
        for (size_t i = below(4); i > 0; i--) json_array_append_new(v, a_value(depth + 1));
        return v;
    default:
        v = json_object();
        for (size_t i = below(4); i > 0; i--) {
            a_text(text, 24, (int)i);
            json_object_set_new(v, text, a_value(depth + 1));
        }
        return v;
    }
}

static char *a_metadata(void)
{
    json_t *o = json_object();
    char *text;

    for (size_t i = 1 + below(3); i > 0; i--) json_object_set_new(o, i == 1 ? "topic" : i == 2 ? "\xc3\xa4" : "n.n", a_value(0));
    text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- A random memory --------------------------------------------------------------------------------------------------------- */

static inferscale_scope a_scope(void)
{
    inferscale_scope s = { .user = one_in(3) ? "ben \"b\"" : "anna" };

    if (one_in(3)) s.agent = "cook";
    if (one_in(3)) s.run = "r-1";
    if (one_in(3)) s.app = "\xe2\x98\x95";
    return s;
}

static void fill_turns(inferscale *is, const inferscale_scope *s, int64_t ids[TURNS])
{
    static char text[24000];

    for (int i = 0; i < TURNS; i++) {
        char external[24];
        inferscale_turn t = { .text = text, .time = time_or_none(), .undated = one_in(4) };

        a_text(text, sizeof text, 1000 + i);
        snprintf(external, sizeof external, "x%d", i);
        if (one_in(2)) t.conversation = "c \xe2\x80\xa8 1";
        if (one_in(2)) t.speaker = "An\"na";
        if (one_in(2)) t.external_id = external;
        OK(inferscale_add_turns(is, s, &t, 1, &ids[i]));
    }
}

static inferscale_fact a_fact(const char *text, const int64_t turns[TURNS])
{
    inferscale_fact f = { .text = text, .event_time = time_or_none(), .valid_from = time_or_none(), .valid_to = time_or_none(),
                          .expires = time_or_none(), .undated = one_in(4), .source_turn = one_in(3) ? turns[below(TURNS)] : 0 };

    if (one_in(2)) f.metadata = a_metadata();
    return f;
}

/* What the library takes of random facts; some are changed, put in the place of others, pinned. */
static void fill(inferscale *is)
{
    static char text[24000];
    const inferscale_scope users[] = { { .user = "anna" }, { .user = "ben \"b\"" } };
    int64_t turns[2][TURNS];
    size_t taken = 0;

    for (int u = 0; u < 2; u++) fill_turns(is, &users[u], turns[u]);
    for (int i = 0; i < FACTS || taken < FACTS / 2; i++) {
        const inferscale_scope s = a_scope();
        inferscale_event e = { 0 };
        inferscale_fact f;

        a_text(text, sizeof text, i);
        f = a_fact(text, turns[strcmp(s.user, "anna") != 0]);
        if (inferscale_remember(is, &s, &f, 1, &e) == INFERSCALE_OK) {
            taken++;
            if (one_in(6)) (void)inferscale_pin(is, &s, e.id, 1); /* eight of an owner at most */
            if (one_in(4)) {
                inferscale_fact g = f;

                if (one_in(2)) g.text = strcat(text, "changed");
                g.event_time = time_or_none();
                if (one_in(2)) (void)inferscale_update(is, &s, e.id, &g);
                else if (g.text = strcat(text, "replaced"), 1) (void)inferscale_supersede(is, &s, e.id, &g, NULL);
            }
        }
        free((char *)f.metadata);
    }
}

/* ---- Export, import, compare --------------------------------------------------------------------------------------------------- */

static int write_to(void *ctx, const void *line, size_t n) { return fwrite(line, 1, n, ctx) != n; }

static FILE *export_all(inferscale *is)
{
    static const inferscale_scope users[] = { { .user = "anna" }, { .user = "ben \"b\"" } };
    FILE *f = tmpfile();

    assert_non_null(f);
    for (int u = 0; u < 2; u++) {
        is_export x = { .is = is, .scope = &users[u], .write = write_to, .ctx = f };

        OK(is_export_run(&x));
        assert_false(x.cut);
    }
    rewind(f);
    return f;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The file's lines without what describes the store, ids of turns as their texts, in order of their own. */
static char **lines_of(FILE *f, size_t *n)
{
    static char line[1 << 20];
    char **out = calloc(4 * (FACTS + TURNS) * 4, sizeof *out), id[24];
    json_t *texts = json_object();

    *n = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL), *source;

        assert_non_null(o);
        snprintf(id, sizeof id, "%lld", (long long)json_integer_value(json_object_get(o, "id")));
        if (!strcmp(json_string_value(json_object_get(o, "type")), "turn")) json_object_set(texts, id, json_object_get(o, "text"));
        source = json_object_get(o, "source_turn");
        if (source) {
            snprintf(id, sizeof id, "%lld", (long long)json_integer_value(source));
            assert_non_null(json_object_get(texts, id));
            json_object_set(o, "source_turn", json_object_get(texts, id));
        }
        json_object_del(o, "id");
        json_object_del(o, "version");
        json_object_del(o, "write_time");
        json_object_del(o, "exported");
        out[(*n)++] = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
        json_decref(o);
    }
    json_decref(texts);
    qsort(out, *n, sizeof *out, by_text);
    rewind(f);
    return out;
}

static void round_trip(int round)
{
    char *home[2] = { scratch_make(), scratch_make() }, **lines[2];
    inferscale *from = store_open(home[0], NULL, NULL, false), *to = store_open(home[1], NULL, NULL, false);
    const is_import_options o = { .nobody = "default" };
    size_t n[2] = { 0 };
    FILE *f[2];
    is_import done;

    fill(from);
    f[0] = export_all(from);
    is_import_run(to, &o, f[0], &done);
    if (done.status != INFERSCALE_OK) fail_msg("round %d: %s", round, done.error);
    is_import_free(&done);
    rewind(f[0]);
    f[1] = export_all(to);
    for (int k = 0; k < 2; k++) lines[k] = lines_of(f[k], &n[k]);
    assert_true(n[0] > FACTS / 2);
    assert_int_equal(n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++)
        if (strcmp(lines[0][i], lines[1][i]) != 0) fail_msg("exported:\n%.3000s\nimported and exported again:\n%.3000s", lines[0][i], lines[1][i]);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++) free(lines[k][i]);
        free(lines[k]);
        fclose(f[k]);
        inferscale_close(k ? to : from);
        scratch_remove(home[k]);
    }
}

static void what_is_exported_is_imported_as_it_was(void **state)
{
    seed = scratch_seed("round trip");
    for (int i = 0; i < ROUNDS; i++) round_trip(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_is_exported_is_imported_as_it_was) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
