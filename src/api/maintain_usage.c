/* maintain_usage.c - where the bytes are: by owner, and by what made them. */
#include <stdio.h>
#include <string.h>

#include "api/maintain.h"
#include "base/mem.h"
#include "base/sort.h"

enum { TEXT, EMBEDDINGS, SEGMENTS };

typedef struct amount {
    int64_t partition_id;
    int what;
    uint8_t fingerprint[IS_HASH_BYTES];
    char policy[32];
    uint64_t n, bytes;
} amount;

typedef struct measure {
    inferscale *is;
    amount *list;
    size_t n, cap;
    is_owner *owners;
    size_t n_owners;
    inferscale_usage_report *r;
} measure;

static is_status add(measure *m, const amount *a)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 64;
        amount *more = is_realloc(m->list, cap * sizeof *more);

        if (!more) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
        m->list = more;
        m->cap = cap;
    }
    m->list[m->n++] = *a;
    return INFERSCALE_OK;
}

/* ---- Bank ---------------------------------------------------------------------------------------------------------------------- */

static is_status add_bank(measure *m)
{
    is_usage_row *rows = NULL;
    size_t n = 0;
    is_status st = is_bank_usage(m->is->bank, &rows, &n);

    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        amount a = { .partition_id = rows[i].partition_id, .what = rows[i].is_embedding ? EMBEDDINGS : TEXT, .n = rows[i].n,
                     .bytes = rows[i].bytes };

        memcpy(a.fingerprint, rows[i].fingerprint, IS_HASH_BYTES);
        st = add(m, &a);
    }
    is_free(rows);
    return st;
}

static uint64_t file_bytes(measure *m, const char *suffix)
{
    const is_fs *fs = is_vault_fs(m->is->vault);
    char path[IS_VAULT_PATH_BYTES];
    is_stat s;

    snprintf(path, sizeof path, "%s%s", is_bank_path(m->is->bank), suffix);
    return fs->stat(fs, path, &s) == INFERSCALE_OK ? s.bytes : 0;
}

/* ---- Vault --------------------------------------------------------------------------------------------------------------------- */

static int same_kind(const amount *a, const amount *b)
{
    if (a->partition_id != b->partition_id) return a->partition_id < b->partition_id ? -1 : 1;
    if (a->what != b->what) return a->what - b->what;
    int view = memcmp(a->fingerprint, b->fingerprint, IS_HASH_BYTES);
    return view ? view : strcmp(a->policy, b->policy);
}

static int by_kind(const void *a, const void *b)
{
    return same_kind(a, b);
}

/* One amount a row of the books; equal ones are added up. The first row of a file has its bytes. */
static is_status add_segments(measure *m)
{
    const is_profile *profile = is_handle_profile(m->is);
    uint64_t n_wide;
    is_vault_files files;
    is_book *books = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_vault_files_read(m->is->vault, &files));
    m->r->vault_files = files.n;
    m->r->vault_bytes = m->r->unnamed_bytes = files.bytes;
    st = is_bank_books(m->is->bank, 0, &books, &n);
    if (st == INFERSCALE_OK && profile && is_handle_narrows(m->is))
        st = is_encode_count_wide(m->is->bank, is_engine_describe(m->is->engine), profile, NULL, &n_wide,
                                  &m->r->wide_bytes);
    m->r->model_known = profile != NULL;
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        bool first = i == 0 || memcmp(books[i - 1].name, books[i].name, IS_HASH_BYTES) != 0;
        const is_vault_file *f = first ? is_vault_files_find(&files, books[i].name) : NULL;
        amount a = { .partition_id = books[i].partition_id, .what = SEGMENTS, .n = 1, .bytes = f ? f->bytes : 0 };

        memcpy(a.fingerprint, books[i].fingerprint, IS_HASH_BYTES);
        memcpy(a.policy, books[i].policy, sizeof a.policy);
        m->r->unnamed_bytes -= a.bytes;
        st = add(m, &a);
    }
    is_free(books);
    is_vault_files_free(&files);
    return st;
}

static void add_up(measure *m)
{
    size_t kept = 0;

    is_sort(m->list, m->n, sizeof *m->list, by_kind);
    for (size_t i = 0; i < m->n; i++) {
        if (kept && same_kind(&m->list[kept - 1], &m->list[i]) == 0) {
            m->list[kept - 1].n += m->list[i].n;
            m->list[kept - 1].bytes += m->list[i].bytes;
        } else {
            m->list[kept++] = m->list[i];
        }
    }
    m->n = kept;
}

/* ---- Report -------------------------------------------------------------------------------------------------------------------- */

static bool is_current(const measure *m, const amount *a)
{
    const is_profile *profile = is_handle_profile(m->is);
    is_embedder *embedder = is_handle_embedder_if_loaded(m->is);

    if (a->what == SEGMENTS) return profile && memcmp(a->fingerprint, profile->fingerprint, IS_HASH_BYTES) == 0;
    return a->what == EMBEDDINGS && embedder && memcmp(a->fingerprint, is_embedder_fingerprint(embedder), IS_HASH_BYTES) == 0;
}

static const is_owner *owner_of(const measure *m, int64_t id)
{
    for (size_t low = 0, high = m->n_owners; low < high;) {
        size_t mid = low + (high - low) / 2;

        if (m->owners[mid].p.id == id) return &m->owners[mid];
        if (m->owners[mid].p.id < id) low = mid + 1;
        else high = mid;
    }
    return NULL;
}

static is_status add_row(measure *m, const amount *a)
{
    static const char *const whats[] = { "text", "embeddings", "segments" };
    inferscale_usage_row *row = &m->r->rows[m->r->n];
    const is_owner *o = owner_of(m, a->partition_id);

    row->tenant = is_strdup(o ? o->tenant : "");
    row->owner_kind = is_owner_kind_name(o ? o->kind : 0);
    row->owner = is_strdup(o ? o->name : "");
    row->what = whats[a->what];
    row->policy = is_strdup(a->policy);
    if (a->what != TEXT) is_hex(a->fingerprint, IS_HASH_BYTES, row->model);
    row->current = is_current(m, a);
    row->n = a->n;
    row->bytes = a->bytes;
    m->r->n++;
    return row->tenant && row->owner && row->policy ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status fill(measure *m, int64_t only)
{
    is_status st = INFERSCALE_OK;

    m->r->rows = is_calloc(m->n + 1, sizeof *m->r->rows);
    if (!m->r->rows) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; st == INFERSCALE_OK && i < m->n; i++)
        if (!only || m->list[i].partition_id == only) st = add_row(m, &m->list[i]);
    return st;
}

is_status inferscale_usage(inferscale *is, const inferscale_scope *scope, inferscale_usage_report **out)
{
    measure m = { .is = is };
    is_partition p = { 0 };
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the report; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    if (scope) IS_TRY(is_bank_partition(is->bank, scope, false, &p));
    m.r = is_calloc(1, sizeof *m.r);
    if (!m.r) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    st = is_bank_owners(is->bank, &m.owners, &m.n_owners);
    if (st == INFERSCALE_OK) st = add_bank(&m);
    if (st == INFERSCALE_OK) st = add_segments(&m);
    if (st == INFERSCALE_OK) st = is_bank_free_bytes(is->bank, &m.r->bank_free_bytes);
    m.r->bank_bytes = file_bytes(&m, "");
    m.r->log_bytes = file_bytes(&m, "-wal");
    add_up(&m);
    if (st == INFERSCALE_OK) st = fill(&m, p.id);
    is_owners_free(m.owners, m.n_owners);
    is_free(m.list);
    if (st == INFERSCALE_OK) *out = m.r;
    else inferscale_usage_free(m.r);
    return st;
}

void inferscale_usage_free(inferscale_usage_report *report)
{
    if (!report) return;
    for (size_t i = 0; i < report->n; i++) {
        is_free((char *)(uintptr_t)report->rows[i].tenant);
        is_free((char *)(uintptr_t)report->rows[i].owner);
        is_free((char *)(uintptr_t)report->rows[i].policy);
    }
    is_free(report->rows);
    is_free(report);
}
