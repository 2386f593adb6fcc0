/* variant.c - see variant.h. */
#include "api/variant.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* 0 is best. The books list the newest first, which decides among equals. */
static int rank(const inferscale *is, const is_segment_row *row)
{
    if (is->has_refine && strcmp(row->policy, is->refine.name) == 0) return 0;
    return strcmp(row->policy, is->policy.name) == 0 ? 1 : 2;
}

static bool is_exact(const is_segment_row *row)
{
    return strcmp(row->policy, "header") == 0;
}

static bool take(inferscale *is, const is_partition *p, const is_segment_row *row, is_segment **out, size_t *n_bad)
{
    if (is_vault_get(is->vault, row->name, is_engine_describe(is->engine)->fingerprint, out) == INFERSCALE_OK) return true;
    ++*n_bad;
    if (!is->read_only) (void)is_bank_drop_segment(is->bank, p, row->name);
    return false;
}

is_status is_variant_load(inferscale *is, const is_partition *p, const inferscale_item *fact, is_variant *v, is_segment **out,
                          size_t *n_bad)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    *out = NULL;
    *v = (is_variant){ .id = fact->id };
    IS_TRY(is_bank_segments(is->bank, p, is->profile->fingerprint, NULL, fact->id, &rows, &n));
    for (size_t i = 0; i < n; i++) v->has_exact = v->has_exact || (rows[i].version == fact->version && is_exact(&rows[i]));
    for (int best = 0; best < 3 && !*out; best++) {
        for (size_t i = 0; i < n && !*out; i++) {
            if (rows[i].version != fact->version || rank(is, &rows[i]) != best || !take(is, p, &rows[i], out, n_bad)) continue;
            snprintf(v->policy, sizeof v->policy, "%s", rows[i].policy);
            v->refined = best == 0;
        }
    }
    is_free(rows);
    return INFERSCALE_OK;
}

is_status is_variant_exact(inferscale *is, const is_partition *p, int64_t fact_id, int version, is_segment **out, size_t *n_bad)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    *out = NULL;
    IS_TRY(is_bank_segments(is->bank, p, is->profile->fingerprint, "header", fact_id, &rows, &n));
    for (size_t i = 0; i < n && !*out; i++)
        if (rows[i].version == version) (void)take(is, p, &rows[i], out, n_bad);
    is_free(rows);
    return INFERSCALE_OK;
}

is_status is_variant_has_exact(inferscale *is, const is_partition *p, int64_t fact_id, int version, bool *has)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    *has = false;
    IS_TRY(is_bank_segments(is->bank, p, is->profile->fingerprint, "header", fact_id, &rows, &n));
    for (size_t i = 0; i < n; i++) *has = *has || rows[i].version == version;
    is_free(rows);
    return INFERSCALE_OK;
}
