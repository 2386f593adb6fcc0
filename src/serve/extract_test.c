/* extract_test.c - is the model good enough to be let at somebody's memory? A few made-up dialogues, each with the facts it holds, and
 * some that hold none. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/handle.h"
#include "base/clock.h"
#include "base/mem.h"
#include "serve/extract_in.h"

enum { LINES = 6, EXPECTED = 4, WORDS = 4, KEPT_MAX = 4096, VERSION = 1 };

typedef struct dialogue {
    int64_t when;
    const char *lines[LINES];              /* "u:..." or "a:..." */
    const char *expected[EXPECTED][WORDS]; /* each: beginnings of words that one fact must all have */
} dialogue;

static const dialogue DIALOGUES[] = {
    { 1709712000, /* 6 March 2024 */
      { "u:Hi! I am Mirela, I repair violins in Ghent.", "a:Nice to meet you, Mirela! Do you play, too?",
        "u:A little. Last week I adopted a one-eyed cat, her name is Biscuit.", "a:Biscuit is a lovely name." },
      { { "violin", "ghent" }, { "cat", "biscuit" } } },
    { 1718236800, /* 13 June 2024 */
      { "u:Please remember that I am allergic to walnuts.", "a:I will. Anything else?",
        "u:Yes, on Mondays I teach chess at the library, so no calls then.", "a:Noted." },
      { { "allerg", "walnut" }, { "chess", "library" } } },
    { 1730419200, /* 1 November 2024 */
      { "u:Good morning!", "a:Good morning! How can I help?", "u:What is the capital of Chile?", "a:Santiago.", "u:Thanks, bye." },
      { { 0 } } },
    { 1735689600, /* 1 January 2025 */
      { "u:My brother Tomasz moved to Bergen in October to work on a ferry.", "a:That sounds exciting.",
        "u:I want to visit him in spring. I am afraid of flying, so I will take the train." },
      { { "tomasz", "bergen" }, { "afraid", "flying" }, { "visit", "spring" } } },
    { 1739577600, /* 15 February 2025 */
      { "u:Can you recommend a book?", "a:Many people who garden like books about soil. The tallest sunflower was nine metres high.",
        "u:Interesting, but I only read detective novels." },
      { { "detective" } } },
    { 1743465600, /* 1 April 2025 */
      { "u:I sold my motorbike and now I cycle 18 kilometres to the hospital where I work as a nurse.", "a:That is quite a ride!",
        "u:It is. Tell me a joke." },
      { { "motorbike" }, { "18", "kilomet" }, { "nurse" } } },
};

/* ---- Judging --------------------------------------------------------------------------------------------------------------- */

/* Does a word of text begin so, whatever the case? */
static bool has_word(const char *text, const char *beginning)
{
    size_t n = strlen(beginning);

    for (const char *p = text; *p; p++)
        if ((p == text || !isalnum((unsigned char)p[-1])) && strncasecmp(p, beginning, n) == 0) return true;
    return false;
}

static bool says(const char *text, const char *const words[WORDS])
{
    for (int i = 0; i < WORDS && words[i]; i++)
        if (!has_word(text, words[i])) return false;
    return words[0] != NULL;
}

/* A fact that says what was expected in part is no junk. */
static bool says_some(const char *text, const dialogue *d)
{
    for (int i = 0; i < EXPECTED; i++)
        for (int w = 0; w < WORDS && d->expected[i][w]; w++)
            if (has_word(text, d->expected[i][w])) return true;
    return false;
}

static void judge(const dialogue *d, const extract_found *found, is_extract_test *out)
{
    for (int i = 0; i < EXPECTED && d->expected[i][0]; i++) {
        bool there = false;

        for (size_t f = 0; f < found->n; f++) there = there || says(found->facts[f].text, d->expected[i]);
        out->expected++;
        out->found += there;
    }
    for (size_t f = 0; f < found->n; f++) out->junk += !says_some(found->facts[f].text, d);
    for (int i = 0; i < N_FAULTS; i++) out->refused += (int)found->refused[i];
    out->dialogues++;
}

/* ---- Keeping --------------------------------------------------------------------------------------------------------------- */

/* The file of a model's or an endpoint's result; what it was asked is part of its name. */
static is_status file_of(const is_extractor *x, bool make, char **path)
{
    inferscale_model_info model;
    uint8_t name[IS_HASH_BYTES];
    char hex[IS_HASH_HEX], file[IS_HASH_HEX + 8], *folder = NULL;
    is_hash *h = NULL;
    is_status st = is_cache_folder("extract", &folder);

    *path = NULL;
    if (st == INFERSCALE_OK && !folder) st = is_fail(INFERSCALE_E_NOTFOUND, "there is no cache folder; set INFERSCALE_CACHE");
    if (st == INFERSCALE_OK) st = is_hash_new(NULL, &h);
    if (st == INFERSCALE_OK) {
        is_hash_u64(h, VERSION);
        is_hash_field(h, extract_told, strlen(extract_told));
        if (x->url && *x->url) {
            is_hash_field(h, x->url, strlen(x->url));
            is_hash_field(h, x->model ? x->model : "", x->model ? strlen(x->model) : 0);
        } else {
            st = inferscale_model(x->is, &model);
            is_hash_field(h, model.fingerprint, strlen(model.fingerprint));
        }
        is_hash_end(h, name);
    }
    if (st == INFERSCALE_OK) {
        is_hex(name, IS_HASH_BYTES, hex);
        snprintf(file, sizeof file, "%s.json", hex);
        if (make) st = is_file_mkdirs(is_fs_default(), folder);
        *path = is_path_join(folder, file);
        if (st == INFERSCALE_OK && !*path) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    is_free(folder);
    return st;
}

static is_status keep(const is_extractor *x, const is_extract_test *t)
{
    char *path = NULL, text[KEPT_MAX];
    json_t *o = json_pack("{s:i,s:i,s:i,s:i,s:i,s:b,s:I,s:s}", "dialogues", t->dialogues, "expected", t->expected, "found", t->found, "junk", t->junk,
                          "refused", t->refused, "passed", t->passed, "time", (json_int_t)t->time, "model", t->model);
    size_t n = o ? json_dumpb(o, text, sizeof text, 0) : 0;
    is_status st = n && n <= sizeof text ? file_of(x, true, &path) : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    if (st == INFERSCALE_OK) st = is_file_write_atomic(is_fs_default(), path, text, n);
    json_decref(o);
    is_free(path);
    return st;
}

is_status is_extract_last(const is_extractor *x, is_extract_test *out)
{
    char *path = NULL;
    uint8_t *text = NULL;
    size_t n = 0;
    json_t *o = NULL;
    is_status st;

    memset(out, 0, sizeof *out);
    st = file_of(x, false, &path);
    if (st == INFERSCALE_OK && !is_fs_default()->exists(is_fs_default(), path))
        st = is_fail(INFERSCALE_E_NOTFOUND, "extraction was not tested with this model; `inferscale doctor --extract` does");
    if (st == INFERSCALE_OK) st = is_file_read_all(is_fs_default(), path, KEPT_MAX, &text, &n);
    if (st == INFERSCALE_OK && !(o = json_loadb((const char *)text, n, 0, NULL)))
        st = is_fail(INFERSCALE_E_NOTFOUND, "the last test of extraction cannot be read; run `inferscale doctor --extract` again");
    if (st == INFERSCALE_OK) {
        const char *model = json_string_value(json_object_get(o, "model"));
        const struct { const char *name; int *to; } numbers[] = {
            { "dialogues", &out->dialogues }, { "expected", &out->expected }, { "found", &out->found },
            { "junk", &out->junk }, { "refused", &out->refused },
        };

        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            *numbers[i].to = (int)json_integer_value(json_object_get(o, numbers[i].name));
        out->passed = json_is_true(json_object_get(o, "passed"));
        out->time = json_integer_value(json_object_get(o, "time"));
        snprintf(out->model, sizeof out->model, "%s", model ? model : "");
    }
    json_decref(o);
    is_free(text);
    is_free(path);
    return st;
}

/* ---- The test -------------------------------------------------------------------------------------------------------------- */

is_status is_extract_selftest(const is_extractor *x, is_extract_test *out)
{
    inferscale_model_info model;
    size_t extracted = 0;

    memset(out, 0, sizeof *out);
    if (x->url && *x->url) {
        snprintf(out->model, sizeof out->model, "%s", x->model && *x->model ? x->model : x->url);
    } else {
        IS_TRY(inferscale_model(x->is, &model));
        snprintf(out->model, sizeof out->model, "%s", model.name);
    }
    for (size_t d = 0; d < sizeof DIALOGUES / sizeof *DIALOGUES; d++) {
        extract_line lines[LINES] = { 0 };
        extract_found found;
        size_t n = 0;

        for (; n < LINES && DIALOGUES[d].lines[n]; n++) {
            const char *l = DIALOGUES[d].lines[n];

            lines[n] = (extract_line){ .is_user = *l == 'u', .who = *l == 'u' ? "user" : "assistant", .text = l + 2, .when = DIALOGUES[d].when };
        }
        IS_TRY(extract_facts(x, lines, n, &found));
        judge(&DIALOGUES[d], &found, out);
        extracted += found.n;
    }
    out->time = is_now_epoch();
    out->passed = out->found * 100 >= out->expected * 80 && out->junk * 100 <= (int)extracted * 20;
    return keep(x, out);
}

bool is_extract_default(is_server *s)
{
    const is_extractor x = is_extractor_of(s);
    is_extract_test t;

    return is_extract_last(&x, &t) == INFERSCALE_OK && t.passed;
}

json_t *is_extract_json(is_server *s)
{
    const is_extractor x = is_extractor_of(s);
    is_extract_test t;
    json_t *o = json_pack("{s:s,s:s}", "extractor", x.url && *x.url ? x.url : "", "model", x.url && *x.url ? (x.model ? x.model : "") : s->model);

    if (is_extract_last(&x, &t) != INFERSCALE_OK) {
        json_object_set_new(o, "infer_default", json_false());
        json_object_set_new(o, "selftest", json_null());
        return o;
    }
    json_object_set_new(o, "infer_default", json_boolean(t.passed));
    json_object_set_new(o, "selftest", json_pack("{s:b,s:i,s:i,s:i,s:i,s:I}", "passed", t.passed, "expected", t.expected, "found", t.found, "junk",
                                                 t.junk, "refused", t.refused, "time", (json_int_t)t.time));
    return o;
}
