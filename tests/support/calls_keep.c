/* Cases of calls.c: segments, and looking after a store. */
#include "support/calls_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

void calls_close_segment(calls *c, inferscale_status st)
{
    if (st != INFERSCALE_OK) assert_null(c->seg);
    inferscale_segment_close(c->seg);
    c->seg = NULL;
}

void calls_have_segment(calls *c)
{
    MUST(inferscale_segment_open(c->segment, &c->seg));
}

inferscale_status calls_run_segment_open(calls *c)
{
    return inferscale_segment_open(c->segment, &c->seg);
}

inferscale_status calls_run_segment_read(calls *c)
{
    inferscale_plane p;
    float *rows;
    uint32_t n = inferscale_segment_tokens(c->seg);
    inferscale_status st;

    if (inferscale_segment_plane(c->seg, 0, &p) != INFERSCALE_OK || !inferscale_segment_token_ids(c->seg)) return INFERSCALE_E_INTERNAL;
    rows = calloc((size_t)n * p.n_heads * p.head_dim, sizeof *rows);
    if (!rows) abort();
    st = inferscale_segment_read(c->seg, 0, 0, n, 0, p.n_heads, 5, INFERSCALE_F32, rows, (size_t)p.n_heads * p.head_dim, p.head_dim);
    free(rows);
    return st;
}

void calls_drop_segment(calls *c, inferscale_status st)
{
    (void)st;
    calls_close_segment(c, INFERSCALE_OK);
}

/* ---- Looking after a store ----------------------------------------------------------------------------------------------- */

inferscale_status calls_run_fsck(calls *c)
{
    inferscale_fsck_report *r = NULL;
    inferscale_status st = inferscale_fsck(c->is, NULL, &r);

    if (st != INFERSCALE_OK) assert_null(r);
    else assert_true(r->n_segments >= CALLS_FACTS);
    inferscale_fsck_free(r);
    return st;
}

inferscale_status calls_run_repair(calls *c)
{
    inferscale_fsck_options o = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale_status st;

    o.repair = 1;
    st = inferscale_fsck(c->is, &o, &r);
    if (st != INFERSCALE_OK) assert_null(r);
    inferscale_fsck_free(r);
    return st;
}

/* A repair under faults may give up segments that could not be read, never what is remembered; then they are made again. */
void calls_sound(calls *c, inferscale_status st)
{
    inferscale_fsck_report *r = NULL;

    (void)st;
    MUST(inferscale_encode(c->is, &c->base, NULL));
    MUST(inferscale_fsck(c->is, NULL, &r));
    if (!r->ok) fail_msg("fsck: %s: %s", r->problems[0].kind, r->problems[0].what);
    inferscale_fsck_free(r);
}

inferscale_status calls_run_gc(calls *c)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;

    o.compact = 1;
    o.max_bytes = UINT64_C(1) << 30;
    return inferscale_gc(c->is, &o);
}

inferscale_status calls_run_backup(calls *c)
{
    return inferscale_backup(c->is, c->spare, NULL);
}

/* A backup that failed can be done again in the same folder, and what it then says is whole is whole. */
void calls_backup_is_whole(calls *c, inferscale_status st)
{
    inferscale_restore_options o = INFERSCALE_RESTORE_OPTIONS_INIT;

    o.verify_only = 1;
    /* one that failed last of all, as its name was synced, is whole already, and is not written over */
    if (st != INFERSCALE_OK && inferscale_restore(c->spare, NULL, &o) != INFERSCALE_OK) MUST(inferscale_backup(c->is, c->spare, NULL));
    MUST(inferscale_restore(c->spare, NULL, &o));
    assert_int_equal(o.bad_files, 0);
}

void calls_have_backup(calls *c)
{
    MUST(inferscale_backup(c->is, c->spare, NULL));
}

static const char *restored(const calls *c)
{
    static char path[700];

    snprintf(path, sizeof path, "%s-restored", c->spare);
    return path;
}

inferscale_status calls_run_restore(calls *c)
{
    return inferscale_restore(c->spare, restored(c), NULL);
}

/* Whole, or refused and possible once what it left is gone. */
void calls_restored_or_not(calls *c, inferscale_status st)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *other = NULL;
    inferscale_list *l = NULL;

    if (st != INFERSCALE_OK) {
        nftw(restored(c), calls_remove_one, 16, FTW_DEPTH | FTW_PHYS);
        MUST(inferscale_restore(c->spare, restored(c), NULL));
    }
    o.home = restored(c);
    o.engine = "mock";
    o.plugin_dir = c->plugins;
    MUST(inferscale_open(&other, &o));
    MUST(inferscale_ls(other, &c->base, 0, 0, 0, &l));
    assert_int_equal(l->n, CALLS_FACTS + 2);
    inferscale_list_free(l);
    inferscale_close(other);
    nftw(restored(c), calls_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

inferscale_status calls_run_usage(calls *c)
{
    inferscale_usage_report *r = NULL;
    inferscale_status st = inferscale_usage(c->is, NULL, &r);

    if (st != INFERSCALE_OK) assert_null(r);
    else assert_true(r->n > 0 && r->vault_files >= CALLS_FACTS);
    inferscale_usage_free(r);
    return st;
}

inferscale_status calls_run_rebuild(calls *c)
{
    return inferscale_rebuild(c->is, &c->own, NULL);
}
