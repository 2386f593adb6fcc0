/* variant.c - see variant.h. */
#include "api/variant.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Pages go before means: by what the planner says of so many facts, where these are the two stages. */
static bool pages_first(const inferscale *is, size_t n_facts)
{
    return is->refine.kind == IS_POLICY_COMPANY && is->policy.kind == IS_POLICY_PAGE && is_plan_is_crowd(n_facts, is->refine.w);
}

static bool is_refined(const inferscale *is, const is_segment_row *row)
{
    return is->has_refine && strcmp(row->policy, is->refine.name) == 0;
}

/* 0 is best. The books list the newest first, which decides among equals. */
static int rank(const inferscale *is, const is_segment_row *row, size_t n_facts)
{
    const int first = pages_first(is, n_facts) ? 0 : 1;

    if (is_refined(is, row)) return 1 - first;
    return strcmp(row->policy, is->policy.name) == 0 ? first : 2;
}

/* Does this policy make rows of the stage? Rows by a policy that the handle has no longer are of no stage. */
static bool is_of_stage(const inferscale *is, int stage, const char *policy)
{
    is_policy of_stage[IS_STAGE_POLICIES];
    const size_t n = is_handle_policies(is, stage, of_stage);

    for (size_t i = 0; i < n; i++)
        if (strcmp(policy, of_stage[i].name) == 0) return true;
    return stage == 0;
}

static bool is_exact(const is_segment_row *row)
{
    return strcmp(row->policy, "header") == 0;
}

/* A file that is gone or damaged leaves the books. What cannot be read just now (no memory, no descriptor) stays for the next time. */
static bool take(inferscale *is, const is_partition *p, const is_segment_row *row, is_segment **out, is_unusable *n_bad)
{
    is_status st = is_engine_segment(is->engine, is->vault, row->name, out);

    if (st == INFERSCALE_OK) return true;
    if (st == INFERSCALE_E_NOTFOUND) is_damage_found(is, p, row, n_bad);
    else n_bad->unread++;
    return false;
}

/* Keeps the rows of this version and stage, in their order; returns how many. */
static size_t keep_usable(const inferscale *is, int version, int stage, is_segment_row *rows, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++)
        if (rows[i].version == version && is_of_stage(is, stage, rows[i].policy)) rows[kept++] = rows[i];
    return kept;
}

is_status is_variant_load(inferscale *is, const is_partition *p, const inferscale_item *fact, size_t n_facts, int stage,
                          is_variant *v, is_segment **out, is_unusable *n_bad)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    *out = NULL;
    *v = (is_variant){ .id = fact->id };
    IS_TRY(is_bank_segments(is->bank, p, is_handle_profile(is)->fingerprint, NULL, fact->id, &rows, &n));
    n = keep_usable(is, fact->version, stage, rows, n);
    for (size_t i = 0; i < n; i++) v->has_exact = v->has_exact || is_exact(&rows[i]);
    for (int best = 0; best < 3 && !*out; best++) {
        for (size_t i = 0; i < n && !*out; i++) {
            if (rank(is, &rows[i], n_facts) != best || !take(is, p, &rows[i], out, n_bad)) continue;
            snprintf(v->policy, sizeof v->policy, "%s", rows[i].policy);
            v->refined = is_refined(is, &rows[i]);
        }
    }
    is_free(rows);
    return INFERSCALE_OK;
}

is_status is_variant_exact(inferscale *is, const is_partition *p, int64_t fact_id, int version, int stage,
                           is_segment **out, is_unusable *n_bad)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    *out = NULL;
    if (!is_of_stage(is, stage, "header")) return INFERSCALE_OK;
    IS_TRY(is_bank_segments(is->bank, p, is_handle_profile(is)->fingerprint, "header", fact_id, &rows, &n));
    for (size_t i = 0; i < n && !*out; i++)
        if (rows[i].version == version) (void)take(is, p, &rows[i], out, n_bad);
    is_free(rows);
    return INFERSCALE_OK;
}

is_status is_variant_mark_exact(inferscale *is, const is_partition *p, int stage, is_plan_fact *facts, size_t n)
{
    if (!is_of_stage(is, stage, "header")) return INFERSCALE_OK;
    is_dep *versions = is_calloc(n + 1, sizeof *versions);
    bool *have = is_calloc(n + 1, sizeof *have);
    is_status st = INFERSCALE_OK;

    if (!versions || !have) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) versions[i] = (is_dep){ facts[i].id, facts[i].version };
    if (st == INFERSCALE_OK) st = is_bank_have_segments(is->bank, p, is_handle_profile(is)->fingerprint, "header", versions, n, have);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) facts[i].exact_first = have[i];
    is_free(versions);
    is_free(have);
    return st;
}
