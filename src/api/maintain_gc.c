/* maintain_gc.c - what nobody needs any more: views of models that are no longer wanted, and what is over the vault's budget, least
 * useful first. Only views go, and they can be made again.
 *
 * Files that no book names do not come about by themselves: a name is in the books before its file is there. They mean that the bank
 * is not the one they were written for, an older backup that was put back or one that was lost. They go when that is asked for. */
#include <stdio.h>
#include <string.h>

#include "api/lost.h"
#include "api/room.h"
#include "api/maintain.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"

enum { BATCH = 128, KEEP_MAX = 32, PREFIX_MIN = 8 };

typedef struct keep {
    bool views, policies;    /* is there a choice of fingerprints, of policies? */
    struct { char hex[IS_HASH_HEX]; size_t n; } prefix[KEEP_MAX];
    size_t n_prefixes;
    char policy[KEEP_MAX][32];
    size_t n_policies;
} keep;

typedef struct gc {
    inferscale *is;
    inferscale_gc_options *o;
    keep keep;
    is_vault_files files;
    is_book *books;
    size_t n_books;
    const is_book *batch[BATCH];
    size_t n_batch;
    uint64_t done, total;
    uint64_t kept_vault_bytes; /* of files in the vault that no book names */
} gc;

/* ---- What to keep ---------------------------------------------------------------------------------------------------------- */

static is_status keep_fingerprint(keep *k, const uint8_t *fingerprint)
{
    is_hex(fingerprint, IS_HASH_BYTES, k->prefix[k->n_prefixes].hex);
    k->prefix[k->n_prefixes++].n = IS_HASH_HEX - 1;
    return INFERSCALE_OK;
}

static is_status keep_current(gc *g)
{
    IS_TRY(is_handle_engine(g->is));
    IS_TRY(is_handle_embedder(g->is));
    if (g->keep.n_prefixes + 2 > KEEP_MAX) return is_fail(INFERSCALE_E_INVALID, "keep names more than %d views; name fewer", KEEP_MAX);
    IS_TRY(keep_fingerprint(&g->keep, is_handle_profile(g->is)->fingerprint));
    return keep_fingerprint(&g->keep, is_embedder_fingerprint(g->is->embedder));
}

static is_status keep_one(gc *g, const char *word, size_t n)
{
    keep *k = &g->keep;
    bool hex = n >= PREFIX_MIN && n < IS_HASH_HEX && strspn(word, "0123456789abcdef") >= n;

    if (k->n_prefixes == KEEP_MAX || k->n_policies == KEEP_MAX)
        return is_fail(INFERSCALE_E_INVALID, "keep names more than %d views; name fewer", KEEP_MAX);
    if (n == 7 && strncmp(word, "current", n) == 0) {
        k->views = true;
        return keep_current(g);
    }
    if (n > 7 && n - 7 < sizeof k->policy[0] && strncmp(word, "policy:", 7) == 0) {
        k->policies = true;
        snprintf(k->policy[k->n_policies++], sizeof k->policy[0], "%.*s", (int)(n - 7), word + 7);
        return INFERSCALE_OK;
    }
    if (!hex)
        return is_fail(INFERSCALE_E_INVALID, "keep: \"%.*s\" is neither \"current\" nor \"policy:NAME\" nor %d or more hex digits of a "
                       "model as usage lists them", (int)(n < 40 ? n : 40), word, PREFIX_MIN);
    k->views = true;
    snprintf(k->prefix[k->n_prefixes].hex, IS_HASH_HEX, "%.*s", (int)n, word);
    k->prefix[k->n_prefixes++].n = n;
    return INFERSCALE_OK;
}

static is_status parse_keep(gc *g)
{
    const char *at = g->o->keep;

    while (at && *at) {
        size_t n = strcspn(at, ",");

        if (n) IS_TRY(keep_one(g, at, n));
        at += n + (at[n] == ',');
    }
    return INFERSCALE_OK;
}

static bool is_kept(const keep *k, const uint8_t *fingerprint, const char *policy)
{
    char hex[IS_HASH_HEX];
    bool view = !k->views, named = !k->policies || !policy;

    is_hex(fingerprint, IS_HASH_BYTES, hex);
    for (size_t i = 0; i < k->n_prefixes && !view; i++) view = strncmp(hex, k->prefix[i].hex, k->prefix[i].n) == 0;
    for (size_t i = 0; i < k->n_policies && !named; i++) named = strcmp(policy, k->policy[i]) == 0;
    return view && named;
}

/* ---- Files without a book ---------------------------------------------------------------------------------------------------- */

static void keep_unnamed(gc *g, uint64_t bytes)
{
    g->o->kept_unnamed_files++;
    g->o->kept_unnamed_bytes += bytes;
}

static is_status shred(gc *g, const is_vault_entry *e, uint64_t *count)
{
    if (!g->o->dry_run) IS_TRY(is_file_shred(is_vault_fs(g->is->vault), e->path));
    ++*count;
    g->o->removed_bytes += e->stat.bytes;
    return INFERSCALE_OK;
}

static is_status look_at(void *ctx, const is_vault_entry *e)
{
    gc *g = ctx;

    switch (e->kind) {
    case IS_VAULT_SEGMENT: return is_vault_files_add(&g->files, e->name, e->stat.bytes);
    case IS_VAULT_BAD: return shred(g, e, &g->o->bad_files);
    case IS_VAULT_MISPLACED:
        if (g->o->unnamed) return shred(g, e, &g->o->unnamed_files);
        g->kept_vault_bytes += e->stat.bytes;
        keep_unnamed(g, e->stat.bytes);
        return INFERSCALE_OK;
    case IS_VAULT_LEFT_OVER: return shred(g, e, &g->o->left_over_files);
    default: return INFERSCALE_OK;
    }
}

/* The files were listed before the books were read, and a name is in the books before its file is there: what no book names now has
 * no owner. */
static is_status remove_unnamed(gc *g, const is_names *doomed, const is_names *doomed_since)
{
    const is_fs *fs = is_vault_fs(g->is->vault);
    char path[IS_VAULT_PATH_BYTES];
    size_t kept = 0;

    for (size_t i = 0; i < g->files.n; i++) {
        const is_vault_file *f = &g->files.files[i];

        if (is_book_find(g->books, g->n_books, f->name) || is_name_in(doomed, f->name) || is_name_in(doomed_since, f->name)) {
            g->files.files[kept++] = *f;
            continue;
        }
        g->files.bytes -= f->bytes;
        is_vault_path(g->is->vault, f->name, path);
        if (!fs->exists(fs, path)) continue; /* forgotten, taken away and ticked off since it was listed */
        if (!g->o->unnamed) {
            g->kept_vault_bytes += f->bytes;
            keep_unnamed(g, f->bytes);
            continue;
        }
        if (!g->o->dry_run) IS_TRY(is_vault_remove(g->is->vault, f->name));
        g->o->unnamed_files++;
        g->o->removed_bytes += f->bytes;
    }
    g->files.n = kept;
    return INFERSCALE_OK;
}

static is_status lost_file(void *ctx, const char *path, uint64_t bytes)
{
    gc *g = ctx;

    if (!g->o->unnamed) {
        keep_unnamed(g, bytes);
        return INFERSCALE_OK;
    }
    if (!g->o->dry_run) IS_TRY(is_file_shred(is_vault_fs(g->is->vault), path));
    g->o->unnamed_files++;
    g->o->removed_bytes += bytes;
    return INFERSCALE_OK;
}

static is_status read_all(gc *g)
{
    is_names doomed = { 0 }, since = { 0 };
    is_status st = is_vault_walk(g->is->vault, look_at, g);

    is_vault_files_sort(&g->files);
    if (st == INFERSCALE_OK) st = is_bank_doomed(g->is->bank, &doomed);
    if (st == INFERSCALE_OK) st = is_bank_books(g->is->bank, 0, &g->books, &g->n_books);
    if (st == INFERSCALE_OK) st = is_bank_doomed(g->is->bank, &since);
    if (st == INFERSCALE_OK) st = remove_unnamed(g, &doomed, &since);
    is_names_free(&doomed);
    is_names_free(&since);
    return st;
}

/* ---- Dropping --------------------------------------------------------------------------------------------------------------------- */

static is_status flush(gc *g)
{
    size_t n = g->n_batch;

    g->n_batch = 0;
    if (n == 0 || g->o->dry_run) return INFERSCALE_OK;
    return is_handle_drop_books(g->is, g->batch, n);
}

/* Drops the file and rows of books[i]'s name. */
static is_status drop(gc *g, const is_book *book, uint64_t *count)
{
    const is_vault_file *f = is_vault_files_find(&g->files, book->name);

    g->batch[g->n_batch++] = book;
    if (f) {
        ++*count;
        g->o->removed_bytes += f->bytes;
        g->files.bytes -= f->bytes;
    }
    if (g->n_batch < BATCH) return INFERSCALE_OK;
    IS_TRY(flush(g));
    return is_tick(g->o->on_progress, g->o->progress_ctx, g->done, g->total, "cleaning");
}

/* ---- Views that are not kept ---------------------------------------------------------------------------------------------------- */

static bool any_kept(const gc *g, size_t i, size_t run)
{
    for (size_t j = i; j < i + run; j++)
        if (is_kept(&g->keep, g->books[j].fingerprint, g->books[j].policy)) return true;
    return false;
}

/* What stays moves to the front: the budget is for that. */
static is_status drop_segments(gc *g)
{
    is_book *dropped = is_malloc((g->n_books + 1) * sizeof *dropped); /* rows of a batch must stay where they are until it is done */
    size_t kept = 0, n_dropped = 0;
    is_status st = dropped ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    for (size_t i = 0, run; st == INFERSCALE_OK && i < g->n_books; i += run) {
        run = is_book_run(g->books, g->n_books, i);
        g->done = i;
        if (any_kept(g, i, run)) {
            memmove(&g->books[kept], &g->books[i], run * sizeof *g->books);
            kept += run;
            continue;
        }
        dropped[n_dropped] = g->books[i];
        st = drop(g, &dropped[n_dropped++], &g->o->view_files);
    }
    if (st == INFERSCALE_OK) st = flush(g);
    if (st == INFERSCALE_OK) g->n_books = kept;
    is_free(dropped);
    return st;
}

static is_status drop_view(gc *g, const is_view_row *v)
{
    uint64_t n = v->n;

    if (!v->is_embedding) return g->o->dry_run ? INFERSCALE_OK : is_bank_drop_pages(g->is->bank, v->fingerprint, v->policy);
    if (!g->o->dry_run) IS_TRY(is_bank_drop_embeddings(g->is->bank, v->fingerprint, &n));
    g->o->view_embeddings += n;
    g->o->removed_bytes += v->bytes;
    return INFERSCALE_OK;
}

static is_status drop_views(gc *g)
{
    is_view_row *views = NULL;
    size_t n = 0;
    is_status st;

    if (!g->keep.views && !g->keep.policies) return INFERSCALE_OK;
    IS_TRY(is_bank_views(g->is->bank, &views, &n));
    g->total = g->n_books;
    st = drop_segments(g);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++)
        if (!is_kept(&g->keep, views[i].fingerprint, views[i].is_embedding ? NULL : views[i].policy)) st = drop_view(g, &views[i]);
    is_free(views);
    return st;
}

/* ---- The budget ------------------------------------------------------------------------------------------------------------------- */

/* Least useful first. The view that was written to last counts as the one in use. */
enum use { USE_CONTEXT_ONLY, USE_OTHER_VIEW, USE_LAPSED, USE_SECOND_VARIANT, USE_VARIANT, USE_PINNED };

typedef struct candidate {
    const is_book *book;
    enum use use;
} candidate;

static int64_t last_write(const gc *g, const uint8_t *fingerprint)
{
    int64_t t = 0;

    for (size_t i = 0; i < g->n_books; i++)
        if (memcmp(g->books[i].fingerprint, fingerprint, IS_HASH_BYTES) == 0 && g->books[i].write_time > t) t = g->books[i].write_time;
    return t;
}

static const uint8_t *view_in_use(const gc *g)
{
    const uint8_t *best = NULL;
    int64_t newest = -1;
    is_view_row *views = NULL;
    size_t n = 0;

    if (is_handle_profile(g->is)) return is_handle_profile(g->is)->fingerprint;
    if (is_bank_views(g->is->bank, &views, &n) != INFERSCALE_OK) return NULL;
    for (size_t i = 0; i < n; i++) {
        int64_t t = views[i].is_embedding ? -1 : last_write(g, views[i].fingerprint);

        if (t <= newest) continue;
        newest = t;
        for (size_t j = 0; j < g->n_books; j++)
            if (memcmp(g->books[j].fingerprint, views[i].fingerprint, IS_HASH_BYTES) == 0) best = g->books[j].fingerprint;
    }
    is_free(views);
    return best;
}

/* By fact and view, the best variant first. */
static int by_fact(const void *a, const void *b)
{
    const is_book *x = ((const candidate *)a)->book, *y = ((const candidate *)b)->book;
    int view = memcmp(x->fingerprint, y->fingerprint, IS_HASH_BYTES);

    if (x->partition_id != y->partition_id) return x->partition_id < y->partition_id ? -1 : 1;
    if (x->item_id != y->item_id) return x->item_id < y->item_id ? -1 : 1;
    if (view) return view;
    if (x->lead != y->lead) return x->lead ? 1 : -1;
    if (x->n_passes != y->n_passes) return x->n_passes > y->n_passes ? -1 : 1;
    return x->write_time != y->write_time ? (x->write_time > y->write_time ? -1 : 1) : memcmp(x->name, y->name, IS_HASH_BYTES);
}

static int by_use(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->use != y->use) return x->use < y->use ? -1 : 1;
    if (x->book->n_passes != y->book->n_passes) return x->book->n_passes < y->book->n_passes ? -1 : 1;
    if (x->book->write_time != y->book->write_time) return x->book->write_time < y->book->write_time ? -1 : 1;
    return memcmp(x->book->name, y->book->name, IS_HASH_BYTES);
}

static int by_name(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    int name = memcmp(x->book->name, y->book->name, IS_HASH_BYTES);

    return name ? name : (int)y->use - (int)x->use; /* of one file's rows the most useful first */
}

static bool same_fact(const is_book *a, const is_book *b)
{
    return a->partition_id == b->partition_id && a->item_id == b->item_id && memcmp(a->fingerprint, b->fingerprint, IS_HASH_BYTES) == 0;
}

static void judge(candidate *c, size_t n, const uint8_t *in_use)
{
    is_sort(c, n, sizeof *c, by_fact);
    for (size_t i = 0; i < n; i++) {
        const is_book *b = c[i].book;
        bool first = i == 0 || !same_fact(c[i - 1].book, b);

        c[i].use = b->lead                                                             ? USE_CONTEXT_ONLY
                   : in_use && memcmp(b->fingerprint, in_use, IS_HASH_BYTES) != 0      ? USE_OTHER_VIEW
                   : b->lapsed                                                         ? USE_LAPSED
                   : !first                                                            ? USE_SECOND_VARIANT
                   : b->pinned                                                         ? USE_PINNED
                                                                                       : USE_VARIANT;
    }
}

static is_status keep_budget(gc *g)
{
    candidate *c;
    size_t n = 0;
    is_status st = INFERSCALE_OK;

    if (!g->o->max_bytes || g->files.bytes <= g->o->max_bytes || g->n_books == 0) return INFERSCALE_OK;
    c = is_malloc(g->n_books * sizeof *c);
    if (!c) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < g->n_books; i++) c[i] = (candidate){ .book = &g->books[i] };
    judge(c, g->n_books, view_in_use(g));
    is_sort(c, g->n_books, sizeof *c, by_name);
    for (size_t i = 0; i < g->n_books; i++) /* one a file: its most useful row speaks for it */
        if (n == 0 || memcmp(c[n - 1].book->name, c[i].book->name, IS_HASH_BYTES)) c[n++] = c[i];
    is_sort(c, n, sizeof *c, by_use);
    g->total = n;
    for (size_t i = 0; st == INFERSCALE_OK && i < n && g->files.bytes > g->o->max_bytes; i++) {
        g->done = i;
        st = drop(g, c[i].book, &g->o->evicted_files);
    }
    if (st == INFERSCALE_OK) st = flush(g);
    is_free(c);
    if (g->o->evicted_files && !g->o->dry_run)
        is_log(IS_LOG_WARN, "the vault's budget: %llu segments were removed; their facts are served as text until they are encoded again",
               (unsigned long long)g->o->evicted_files);
    return st;
}

/* ---- All ------------------------------------------------------------------------------------------------------------------------------ */

static void clear_results(inferscale_gc_options *o)
{
    inferscale_gc_options asked = *o;

    *o = (inferscale_gc_options){ .struct_size = asked.struct_size, .keep = asked.keep, .max_bytes = asked.max_bytes, .compact = asked.compact,
                                  .dry_run = asked.dry_run, .on_progress = asked.on_progress, .progress_ctx = asked.progress_ctx,
                                  .unnamed = asked.unnamed };
}

is_status inferscale_gc(inferscale *is, inferscale_gc_options *options)
{
    inferscale_gc_options none = INFERSCALE_GC_OPTIONS_INIT;
    gc g = { .is = is, .o = options ? options : &none };
    is_status st;

    IS_TRY(is_handle_check(is));
    if (g.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the gc options are not initialised; use INFERSCALE_GC_OPTIONS_INIT");
    if (is->read_only && !g.o->dry_run)
        return is_room_refuse(is, "clean it, or ask for a dry run");
    clear_results(g.o);
    st = parse_keep(&g);
    if (st == INFERSCALE_OK) st = read_all(&g);
    if (st == INFERSCALE_OK)
        st = is_lost_walk(is_vault_fs(is->vault), is->home, g.o->unnamed && !g.o->dry_run, lost_file, &g);
    if (st == INFERSCALE_OK) st = drop_views(&g);
    if (st == INFERSCALE_OK) st = keep_budget(&g);
    g.o->vault_bytes = g.files.bytes + g.kept_vault_bytes;
    if (st == INFERSCALE_OK && !g.o->dry_run) st = is_bank_compact(is->bank, g.o->compact != 0, &g.o->bank_freed_bytes);
    if (st == INFERSCALE_OK && g.o->dry_run) st = is_bank_free_bytes(is->bank, &g.o->bank_freed_bytes);
    is_vault_files_free(&g.files);
    is_free(g.books);
    return st;
}
