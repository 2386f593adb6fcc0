#include "support/encode_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/mem.h"

static char ek_plugins[1024];
unsigned long long ek_rng;

int ek_begin(void **state)
{
    ssize_t n = readlink("/proc/self/exe", ek_plugins, sizeof ek_plugins - 1);

    if (n < 0) return -1;
    ek_plugins[n] = 0;
    *strrchr(ek_plugins, '/') = 0;
    *strrchr(ek_plugins, '/') = 0;
    ek_rng = scratch_seed("test_encode");
    return 0;
}

/* ---- A memory ------------------------------------------------------------------------------------------------------------ */

static const char *const who[] = { "Anna", "Ben", "Cleo", "Dora" }, *const what[] = { "plums", "boats", "chess", "rain", "tea" };

void ek_remember(lab *l, int from, int n, int64_t *ids)
{
    for (int i = from; i < from + n; i++) {
        char text[96];
        inferscale_fact f = { .text = text, .event_time = 1700000000 + i * 1000 };
        inferscale_turn t = { .speaker = who[i % 4], .text = text, .time = 1700000000 + i * 1000 };

        snprintf(text, sizeof text, "%s number %d said that %s are fine.", who[i % 4], i, what[i % 5]);
        if (i < TURNS) KIT_OK(is_bank_add_turns(l->is->bank, &l->partition, &l->scope, &t, 1, &f.source_turn));
        snprintf(text, sizeof text, "%s likes %s and knows number %d.", who[i % 4], what[i % 5], i);
        KIT_OK(lab_remember(l, &f, 1, &ids[i]));
    }
}

lab *ek_open(const char *model, const char *policy, const char *refine, const char *codec)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    lab *l = NULL;

    o.engine = "mock";
    o.model = model;
    o.embedder = "mock";
    o.plugin_dir = ek_plugins;
    o.policy = policy;
    o.refine = refine;
    o.codec = codec;
    KIT_OK(lab_open(&o, "tester", &l));
    KIT_OK(is_handle_engine(l->is));
    return l;
}

is_encoder ek_encoder(lab *l)
{
    KIT_OK(is_handle_embed(l->is, &l->partition, NULL, NULL));
    KIT_OK(is_bank_partition_refresh(l->is->bank, &l->partition));
    return is_handle_encoder(l->is);
}

is_policy ek_policy(const char *text)
{
    is_policy p;

    KIT_OK(is_policy_parse(text, &p));
    return p;
}

is_encode_job ek_encode(lab *l, const is_policy *policy, const int64_t *ids, size_t n, uint64_t ram)
{
    const is_encoder enc = ek_encoder(l);
    is_encode_job job = { .policy = policy, .ram_bytes = ram };

    KIT_OK(is_encode_facts(&enc, &l->partition, ids, n, &job));
    return job;
}

inferscale_list *ek_item(lab *l, int64_t id)
{
    inferscale_list *list = NULL;

    KIT_OK(is_bank_get(l->is->bank, &l->partition, &id, 1, &list));
    assert_int_equal(list->n, 1);
    return list;
}

bool ek_has_row(lab *l, const is_policy *policy, int64_t id, is_segment_row *row)
{
    const is_encoder enc = is_handle_encoder(l->is);

    return is_find_kept(&enc, &l->partition, policy->name, id, row);
}

size_t ek_n_rows(lab *l, const is_policy *policy, int64_t id)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    KIT_OK(is_bank_segments(l->is->bank, &l->partition, l->is->profile->fingerprint, policy->name, id, &rows, &n));
    is_free(rows);
    return n;
}

/* ---- The dependency table, read apart ------------------------------------------------------------------------------------ */

/* The items that the fact's segments under the policy depend on, in id order; returns how many. */
size_t ek_deps(lab *l, const char *policy, int64_t id, int64_t *out, size_t cap)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    size_t n = 0;

    assert_int_equal(sqlite3_open_v2(is_bank_path(l->is->bank), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT DISTINCT d.item_id FROM segments s JOIN segment_deps d ON d.segment_id = s.id WHERE"
                                            " s.item_id = ?1 AND s.policy = ?2 ORDER BY 1", -1, &q, NULL), SQLITE_OK);
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_text(q, 2, policy, -1, SQLITE_STATIC);
    while (sqlite3_step(q) == SQLITE_ROW && n < cap) out[n++] = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The items that the contexts hold, and the fact itself. */
static size_t held_by(const is_context *contexts, size_t n, int64_t self, int64_t *out)
{
    size_t m = 0, k = 0;

    out[m++] = self;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < contexts[i].n_deps; j++) out[m++] = contexts[i].deps[j].item_id;
    qsort(out, m, sizeof *out, by_value);
    for (size_t i = 0; i < m; i++)
        if (i == 0 || out[i] != out[i - 1]) out[k++] = out[i];
    return k;
}

/* Every dependency's own line stands in one of the contexts: the table names texts that were really there. */
static bool stands_in(lab *l, const is_context *contexts, size_t n, int64_t id)
{
    inferscale_list *list = ek_item(l, id);
    is_tokens line = { 0 };
    bool found = false;

    if (list->items[0].kind == INFERSCALE_TURNS) KIT_OK(is_profile_turn(l->is->engine, NULL, &list->items[0], &line));
    else KIT_OK(is_profile_fact(l->is->engine, NULL, &list->items[0], &line));
    for (size_t i = 0; i < n; i++)
        for (uint32_t at = 0; at + line.n <= contexts[i].tokens.n && !found; at++)
            found = memcmp(contexts[i].tokens.ids + at, line.ids, line.n * sizeof *line.ids) == 0;
    is_tokens_free(&line);
    inferscale_list_free(list);
    return found;
}

/* ---- What a segment holds is what it was computed from ------------------------------------------------------------------- */

/* The mean of the rows of span behind each context, as a segment. */
static is_segment *made_by_hand(lab *l, const is_context *contexts, size_t n, const is_tokens *span)
{
    const is_encoder enc = is_handle_encoder(l->is);
    const is_geometry *g = is_engine_geometry(enc.engine);
    const uint8_t name[IS_HASH_BYTES] = { 0 };
    is_segment *out = NULL;
    is_rows sum;

    KIT_OK(is_rows_new(g, span->n, &sum));
    for (size_t i = 0; i < n; i++) {
        is_span one = { &contexts[i], span };
        is_rows rows;

        KIT_OK(is_capture_spans(&enc, NULL, &one, 1, &rows));
        for (uint32_t p = 0; p < g->n_planes; p++)
            for (size_t j = 0; j < (size_t)is_plane_width(&g->planes[p]) * span->n; j++) sum.rows[p][j] += rows.rows[p][j] / (float)n;
        is_rows_free(&rows);
    }
    KIT_OK(is_rows_segment(&enc, &sum, 0, enc.profile->codec, name, span, 0, &out));
    is_rows_free(&sum);
    return out;
}

/* Rows are equal but for the rounding of a sum in another order (a mean of a dozen multiples of 1/2, as f16). */
static bool same_rows(const is_geometry *g, const is_segment *a, const is_segment *b, bool exactly)
{
    const uint32_t n = is_segment_info(a)->n_tokens;

    if (n != is_segment_info(b)->n_tokens) return false;
    for (uint32_t p = 0; p < g->n_planes; p++)
        for (uint32_t h = 0; h < g->planes[p].n_heads; h++) {
            const uint16_t *x = is_segment_head(a, p, h), *y = is_segment_head(b, p, h);

            for (size_t i = 0; i < (size_t)n * g->planes[p].head_dim; i++) {
                float d = is_f32_from_f16(x[i]) - is_f32_from_f16(y[i]);

                if (exactly ? x[i] != y[i] : !(d < 0.01f && d > -0.01f)) return false;
            }
        }
    return true;
}

void ek_check_fact(lab *l, const is_policy *policy, int64_t id)
{
    const is_encoder enc = is_handle_encoder(l->is);
    inferscale_list *list = ek_item(l, id);
    is_context *contexts = NULL;
    is_segment_row row;
    is_segment *kept = NULL, *other;
    is_tokens span = { 0 };
    int64_t want[512], got[512];
    size_t n = 0, n_want, n_got;

    KIT_OK(is_encode_contexts(&enc, &l->partition, policy, &list->items[0], &contexts, &n));
    assert_true(n >= 1);
    assert_true(ek_has_row(l, policy, id, &row));
    assert_int_equal(row.n_passes, n);
    assert_int_equal(ek_n_rows(l, policy, id), 1);
    KIT_OK(is_vault_get(enc.vault, row.name, NULL, &kept));
    KIT_OK(is_profile_fact(enc.engine, NULL, &list->items[0], &span));
    other = made_by_hand(l, contexts, n, &span);
    if (!same_rows(is_engine_geometry(enc.engine), kept, other, n == 1))
        fail_msg("the rows of fact %lld under %s are not those of its contexts", (long long)id, policy->name);
    n_want = held_by(contexts, n, id, want);
    n_got = ek_deps(l, policy->name, id, got, 512);
    if (n_want != n_got || memcmp(want, got, n_want * sizeof *want) != 0)
        fail_msg("fact %lld under %s: %zu items in its contexts, %zu in the table", (long long)id, policy->name, n_want, n_got);
    for (size_t i = 0; i < n_want; i++)
        if (want[i] != id) assert_true(stands_in(l, contexts, n, want[i]));
    is_segment_unref(kept);
    is_segment_unref(other);
    is_tokens_free(&span);
    is_contexts_free(contexts, n);
    inferscale_list_free(list);
}
