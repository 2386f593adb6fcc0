/* maintain_rebuild.c - views made anew, owner by owner. What is there serves until its replacement takes its place: a vector is written
 * over in one transaction, a KV file by a rename. */
#include <string.h>

#include "api/calibrate.h"
#include "api/maintain.h"
#include "api/room.h"
#include "base/mem.h"

/* Progress over all owners: units of the ones before are added on. */
typedef struct span {
    inferscale_rebuild_options *o;
    uint64_t before, total, done, last;
} span;

typedef struct job {
    inferscale *is;
    inferscale_rebuild_options *o;
    is_owner *owners;
    size_t n;
    span span;
} job;

/* One owner's piece of work of `done` of `total`, as a part of all. */
static int on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    span *s = ctx;

    if (done < s->done) s->before += s->last; /* the next policy of the same owner */
    s->done = done;
    s->last = total;
    if (!s->o->on_progress) return 0;
    return s->o->on_progress(s->o->progress_ctx, s->before + done, s->total > s->before + total ? s->total : s->before + total, what);
}

static void begin(job *j, uint64_t total)
{
    j->span = (span){ .o = j->o, .total = total };
}

static void next_owner(job *j)
{
    j->span.before += j->span.last;
    j->span.last = j->span.done = 0;
}

static is_status embeddings(job *j, const is_bank_counts *c)
{
    begin(j, c->facts + c->turns);
    for (size_t i = 0; i < j->n; i++) {
        IS_TRY(is_handle_embed_again(j->is, &j->owners[i].p, on_progress, &j->span, &j->o->embedded));
        next_owner(j);
    }
    return INFERSCALE_OK;
}

/* SQLite's indexes, and the recall indexes in memory, which the next question would build. */
static is_status indexes(job *j)
{
    IS_TRY(is_bank_reindex(j->is->bank));
    for (size_t i = 0; i < j->n; i++) {
        inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
        inferscale_scope scope = is_owner_scope(&j->owners[i]);
        inferscale_list *list = NULL;

        is_recall_forget(j->is->recall, j->owners[i].p.id);
        o.k = 1;
        o.method = INFERSCALE_LEXICAL;
        if (j->n == 1) IS_TRY(inferscale_recall(j->is, &scope, "index", &o, &list)); /* of many, most would be dropped from memory again */
        inferscale_list_free(list);
        IS_TRY(is_tick(j->o->on_progress, j->o->progress_ctx, i + 1, j->n, "indexing"));
    }
    return INFERSCALE_OK;
}

static is_status keys_and_values(job *j, const is_bank_counts *c)
{
    is_policy policies[IS_STAGE_POLICIES];

    begin(j, c->facts * (is_handle_policies(j->is, INFERSCALE_STAGE_FIRST, policies) + is_handle_policies(j->is, INFERSCALE_STAGE_REFINE, policies)));
    for (size_t i = 0; i < j->n; i++) {
        inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
        inferscale_scope scope = is_owner_scope(&j->owners[i]);
        is_status st;

        e.again = 1;
        e.stage = j->is->has_refine ? INFERSCALE_STAGE_ALL : INFERSCALE_STAGE_FIRST;
        e.on_progress = on_progress;
        e.progress_ctx = &j->span;
        st = inferscale_encode(j->is, &scope, &e);
        j->o->facts_encoded += e.facts_encoded;
        j->o->tokens_stored += e.tokens_stored;
        j->o->tokens_computed += e.tokens_computed;
        if (st != INFERSCALE_OK) return st;
        next_owner(j);
    }
    return INFERSCALE_OK;
}

/* The one owner of a scope, or all. */
static is_status choose(job *j, const inferscale_scope *scope)
{
    is_partition p;
    size_t kept = 0;

    IS_TRY(is_bank_owners(j->is->bank, &j->owners, &j->n));
    if (!scope) return INFERSCALE_OK;
    IS_TRY(is_bank_partition(j->is->bank, scope, false, &p));
    for (size_t i = 0; i < j->n; i++) {
        if (j->owners[i].p.id == p.id) {
            is_owner found = j->owners[i];

            j->owners[i] = j->owners[0];
            j->owners[0] = found;
            kept = 1;
        }
    }
    for (size_t i = kept; i < j->n; i++) {
        is_free(j->owners[i].tenant);
        is_free(j->owners[i].name);
    }
    j->n = kept;
    return INFERSCALE_OK;
}

is_status inferscale_rebuild(inferscale *is, const inferscale_scope *scope, inferscale_rebuild_options *options)
{
    inferscale_rebuild_options none = INFERSCALE_REBUILD_OPTIONS_INIT;
    job j = { .is = is, .o = options ? options : &none };
    is_bank_counts counts;
    is_status st;
    int what;

    IS_TRY(is_handle_check(is));
    if (j.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the rebuild options are not initialised; use INFERSCALE_REBUILD_OPTIONS_INIT");
    if (j.o->what < 0 || j.o->what > INFERSCALE_REBUILD_ALL)
        return is_fail(INFERSCALE_E_INVALID, "what is %d; add up INFERSCALE_REBUILD_EMBEDDINGS, _INDEX and _KV", j.o->what);
    if (is->read_only) return is_room_refuse(is, "rebuild its views");
    what = j.o->what ? j.o->what : INFERSCALE_REBUILD_ALL;
    j.o->owners = j.o->embedded = j.o->facts_encoded = j.o->tokens_stored = j.o->tokens_computed = 0;
    st = is_bank_count(is->bank, &counts);
    if (st == INFERSCALE_OK && scope) counts = (is_bank_counts){ 0 }; /* one owner's work says its own size */
    if (st == INFERSCALE_OK) st = choose(&j, scope);
    j.o->owners = j.n;
    if (st == INFERSCALE_OK && what & INFERSCALE_REBUILD_INDEX) st = indexes(&j);
    if (st == INFERSCALE_OK && what & INFERSCALE_REBUILD_EMBEDDINGS) st = embeddings(&j, &counts);
    if (st == INFERSCALE_OK && j.o->embedded) is_handle_calibrate(is, is->bank, IS_CALIBRATE_AGAIN, NULL);
    if (st == INFERSCALE_OK && what & INFERSCALE_REBUILD_KV) st = keys_and_values(&j, &counts);
    is_owners_free(j.owners, j.n);
    return st;
}
