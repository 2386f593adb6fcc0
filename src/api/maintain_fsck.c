/* maintain_fsck.c - bank, books and vault against one another.
 *
 * The order makes it safe beside encoders and forgetters at work: the files are listed first and the books read after them, so a file
 * that no book names was not written in between (a name is in the books before its file is there); a file that a book names and that is
 * not there is asked about again before it is called missing. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/maintain.h"
#include "api/room.h"
#include "base/mem.h"

enum { LISTED_MAX = 10000, DOOMED_WAIT_MS = 400, FAMILIES = 64 };

/* Which model's segments a profile's are: all of one must agree. */
typedef struct family { uint8_t profile[IS_HASH_BYTES], model[IS_HASH_BYTES]; } family;

typedef struct fsck {
    inferscale *is;
    inferscale_fsck_options o;
    inferscale_fsck_report *r;
    size_t cap;
    is_vault_files files;
    is_book *books;
    size_t n_books;
    is_names doomed, doomed_since; /* before and after the books were read: a name moves from one to the other, both ways */
    family families[FAMILIES];
    size_t n_families;
} fsck;

/* ---- Saying so ------------------------------------------------------------------------------------------------------------- */

/* repaired: as in inferscale_problem. */
static is_status record(fsck *f, const char *kind, const char *what, int repaired)
{
    inferscale_problem *p;

    if (!repaired) f->r->ok = 0;
    if (f->r->n_problems >= LISTED_MAX) {
        f->r->n_more++;
        return INFERSCALE_OK;
    }
    if (f->r->n_problems == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 16;

        p = is_realloc(f->r->problems, cap * sizeof *p);
        if (!p) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the report; free some memory and try again");
        f->r->problems = p;
        f->cap = cap;
    }
    p = &f->r->problems[f->r->n_problems];
    *p = (inferscale_problem){ .kind = is_strdup(kind), .what = is_strdup(what), .repaired = repaired };
    f->r->n_problems++;
    return p->kind && p->what ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the report; free some memory and try again");
}

static is_status say(void *ctx, const char *kind, const char *what, bool repaired)
{
    return record(ctx, kind, what, repaired);
}

/* The path inside the store. */
static const char *inside(const fsck *f, const char *path)
{
    size_t n = strlen(f->is->home);

    return strncmp(path, f->is->home, n) == 0 && path[n] == '/' ? path + n + 1 : path;
}

static is_status say_file(fsck *f, const char *kind, const char *path, const char *what,
                          int repaired)
{
    char text[600];

    snprintf(text, sizeof text, "%.300s: %.280s", inside(f, path), what);
    return record(f, kind, text, repaired);
}

/* What a killed process leaves is no damage: opening the store for writing removes it, and so does
 * repairing. */
static is_status say_left(fsck *f, const char *kind, const char *path, const char *what, bool gone)
{
    return say_file(f, kind, path, what, f->o.repair ? gone : -1);
}

/* ---- Modes ----------------------------------------------------------------------------------------------------------------- */

static is_status check_mode(fsck *f, const char *path, const is_stat *s)
{
    const is_fs *fs = is_vault_fs(f->is->vault);
    uint32_t want = s->is_dir ? 0700 : 0600;
    char what[80];

    if (s->mode == want || (f->is->read_only && (s->mode & 077) == 0)) return INFERSCALE_OK;
    snprintf(what, sizeof what, "its mode is %04o and should be %04o", (unsigned)s->mode, (unsigned)want);
    return say_file(f, "wrong-mode", path, what, f->o.repair && fs->set_mode(fs, path, want) == INFERSCALE_OK);
}

/* The database and what SQLite keeps beside it. */
static is_status check_bank_modes(fsck *f)
{
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    const is_fs *fs = is_vault_fs(f->is->vault);

    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char path[IS_VAULT_PATH_BYTES];
        is_stat s;

        snprintf(path, sizeof path, "%s%s", is_bank_path(f->is->bank), suffixes[i]);
        if (fs->stat(fs, path, &s) == INFERSCALE_OK && s.is_regular) IS_TRY(check_mode(f, path, &s));
    }
    return INFERSCALE_OK;
}

/* ---- What lies in the vault -------------------------------------------------------------------------------------------------- */

static is_status shred(fsck *f, const char *kind, const char *path, const char *what)
{
    return say_file(f, kind, path, what, f->o.repair && is_file_shred(is_vault_fs(f->is->vault), path) == INFERSCALE_OK);
}

static is_status look_at(void *ctx, const is_vault_entry *e)
{
    fsck *f = ctx;
    bool gone;

    if (e->kind != IS_VAULT_STRAY) IS_TRY(check_mode(f, e->path, &e->stat));
    if (e->kind != IS_VAULT_FOLDER) f->r->n_files++;
    switch (e->kind) {
    case IS_VAULT_SEGMENT: return is_vault_files_add(&f->files, e->name, e->stat.bytes);
    case IS_VAULT_BAD: return shred(f, "file-bad", e->path, "a damaged file that was set aside");
    case IS_VAULT_MISPLACED: return shred(f, "file-misplaced", e->path, "a segment's file where its name does not lead");
    case IS_VAULT_LEFT_OVER:
        gone = f->o.repair && is_file_shred(is_vault_fs(f->is->vault), e->path) == INFERSCALE_OK;
        return say_left(f, "file-left-over", e->path,
                        "left by a process that is gone; opening the store for writing removes it",
                        gone);
    case IS_VAULT_STRAY: return say_file(f, "file-stray", e->path, "is none of ours; move it away", false);
    default: return INFERSCALE_OK;
    }
}

static is_status check_unnamed(fsck *f)
{
    for (size_t i = 0; i < f->files.n; i++) {
        const uint8_t *name = f->files.files[i].name;
        char path[IS_VAULT_PATH_BYTES];

        if (is_book_find(f->books, f->n_books, name) || is_name_in(&f->doomed, name) || is_name_in(&f->doomed_since, name)) continue;
        is_vault_path(f->is->vault, name, path);
        if (!is_vault_fs(f->is->vault)->exists(is_vault_fs(f->is->vault), path)) continue; /* removed meanwhile */
        /* Not mended by removing it: it may be what a better bank names. */
        IS_TRY(say_file(f, "file-unnamed", path, "no book names it; `inferscale gc --unnamed` removes it", false));
    }
    return INFERSCALE_OK;
}

/* ---- Segments ---------------------------------------------------------------------------------------------------------------- */

/* Is the file of another size than its head says? */
static bool is_torn(fsck *f, const char *path, uint64_t bytes)
{
    const is_fs *fs = is_vault_fs(f->is->vault);
    uint8_t head[24];
    is_file *file = NULL;
    bool torn = true;

    if (bytes < sizeof head || fs->open(fs, path, IS_OPEN_READ, &file) != INFERSCALE_OK) return true;
    if (fs->pread(fs, file, head, sizeof head, 0) == INFERSCALE_OK) torn = is_get_u64(head + 16) != bytes;
    fs->close(fs, file);
    return torn;
}

/* Drops the row and the file: the fact is served as text, and encoded again. */
static is_status say_segment(fsck *f, const is_book *book, const char *kind, const char *what)
{
    bool repaired = false, named = false;
    char path[IS_VAULT_PATH_BYTES], text[400];

    IS_TRY(is_bank_names_it(f->is->bank, book->partition_id, book->name, &named));
    if (!named) return INFERSCALE_OK; /* forgotten while we looked */
    is_vault_path(f->is->vault, book->name, path);
    if (f->o.repair) repaired = is_handle_drop_books(f->is, &book, 1) == INFERSCALE_OK;
    snprintf(text, sizeof text, "the KV of fact %lld %.250s", (long long)book->item_id, what);
    return say_file(f, kind, path, text, repaired);
}

static is_status check_family(fsck *f, const is_book *book, const is_segment *s)
{
    const uint8_t *model = is_segment_info(s)->fingerprint;
    size_t i = 0;

    while (i < f->n_families && memcmp(f->families[i].profile, book->fingerprint, IS_HASH_BYTES)) i++;
    if (i == FAMILIES) return INFERSCALE_OK;
    if (i == f->n_families) {
        memcpy(f->families[i].profile, book->fingerprint, IS_HASH_BYTES);
        memcpy(f->families[i].model, model, IS_HASH_BYTES);
        f->n_families++;
    }
    if (memcmp(f->families[i].model, model, IS_HASH_BYTES) == 0) return INFERSCALE_OK;
    return say_segment(f, book, "file-foreign", "was computed by another model than the books say");
}

static is_status check_content(fsck *f, const is_book *books, size_t n, uint64_t bytes)
{
    char path[IS_VAULT_PATH_BYTES];
    is_segment *s = NULL;
    is_status st = is_vault_verify(f->is->vault, books->name, &s);

    f->r->bytes_read += bytes;
    is_vault_path(f->is->vault, books->name, path);
    switch (st) {
    case INFERSCALE_OK: break;
    case INFERSCALE_E_NOMEM: return st;
    case INFERSCALE_E_NOTFOUND: return say_segment(f, books, "file-missing", "is not there");
    case INFERSCALE_E_CORRUPT:
        return is_torn(f, path, bytes) ? say_segment(f, books, "file-torn", "is cut or too long")
                                       : say_segment(f, books, "file-rotten", "does not match its checksums");
    case INFERSCALE_E_FOREIGN: return say_segment(f, books, "file-foreign", "is another segment's, or of a newer version");
    default: return say_file(f, "file-unreadable", path, is_error(), false);
    }
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        if (books[i].n_tokens == is_segment_info(s)->n_tokens) continue;
        st = say_segment(f, &books[i], "books-differ", "has another number of tokens than the books say");
        break;
    }
    if (st == INFERSCALE_OK) st = check_family(f, books, s);
    is_segment_unref(s);
    return st;
}

static is_status check_segments(fsck *f)
{
    for (size_t i = 0, run; i < f->n_books; i += run) {
        const is_vault_file *file = is_vault_files_find(&f->files, f->books[i].name);

        run = is_book_run(f->books, f->n_books, i);
        f->r->n_segments++;
        if (file && !f->o.quick) IS_TRY(check_content(f, &f->books[i], run, file->bytes));
        else if (!file && !is_vault_has(f->is->vault, f->books[i].name)) IS_TRY(say_segment(f, &f->books[i], "file-missing", "is not there"));
        IS_TRY(is_tick(f->o.on_progress, f->o.progress_ctx, i + run, f->n_books, "checking"));
    }
    return INFERSCALE_OK;
}

/* A name stays doomed while its file is being written or removed, some milliseconds. One that stays longer was left by a crash. */
static is_status check_doomed(fsck *f)
{
    is_names now = { 0 };
    is_status st;

    if (f->doomed.n == 0) return INFERSCALE_OK;
    usleep(DOOMED_WAIT_MS * 1000);
    st = is_bank_doomed(f->is->bank, &now);
    for (size_t i = 0; st == INFERSCALE_OK && i < f->doomed.n; i++) {
        is_names one = { .n = 1, .names = &f->doomed.names[i] };
        char path[IS_VAULT_PATH_BYTES];
        bool gone = false;

        is_vault_path(f->is->vault, f->doomed.names[i], path);
        if (!is_name_in(&now, f->doomed.names[i]) || !is_vault_fs(f->is->vault)->exists(is_vault_fs(f->is->vault), path)) continue;
        if (f->o.repair)
            gone = is_vault_remove(f->is->vault, f->doomed.names[i]) == INFERSCALE_OK && is_bank_doomed_done(f->is->bank, &one) == INFERSCALE_OK;
        st = say_left(f, "file-doomed", path,
                      "an interrupted process did not remove it; opening for writing does",
                      gone);
    }
    is_names_free(&now);
    return st;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------------- */

static is_status check_bank(fsck *f)
{
    is_names stale = { 0 };
    is_status st = is_bank_verify(f->is->bank, f->o.repair != 0, say, f, &stale);

    for (size_t i = 0; st == INFERSCALE_OK && i < stale.n; i++) st = is_vault_remove(f->is->vault, stale.names[i]);
    if (st == INFERSCALE_OK) st = is_bank_doomed_done(f->is->bank, &stale);
    is_names_free(&stale);
    return st;
}

static bool is_damaged(const fsck *f)
{
    for (size_t i = 0; i < f->r->n_problems; i++)
        if (strcmp(f->r->problems[i].kind, "bank-damaged") == 0) return true;
    return false;
}

static is_status check_vault(fsck *f)
{
    IS_TRY(is_vault_walk(f->is->vault, look_at, f));
    is_vault_files_sort(&f->files);
    if (is_damaged(f)) return INFERSCALE_OK; /* without books nothing can be said of the files */
    IS_TRY(is_bank_doomed(f->is->bank, &f->doomed));
    IS_TRY(is_bank_books(f->is->bank, 0, &f->books, &f->n_books));
    IS_TRY(is_bank_doomed(f->is->bank, &f->doomed_since));
    IS_TRY(check_unnamed(f));
    IS_TRY(check_segments(f));
    return check_doomed(f);
}

static is_status count_owners(fsck *f)
{
    is_owner *owners = NULL;
    size_t n = 0;
    is_status st = is_damaged(f) ? INFERSCALE_OK : is_bank_owners(f->is->bank, &owners, &n);

    f->r->n_owners = n;
    is_owners_free(owners, n);
    return st;
}

is_status inferscale_fsck(inferscale *is, const inferscale_fsck_options *options, inferscale_fsck_report **out)
{
    fsck f = { .is = is, .o = INFERSCALE_FSCK_OPTIONS_INIT };
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the report; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    if (options && options->struct_size < sizeof *options)
        return is_fail(INFERSCALE_E_INVALID, "the fsck options are not initialised; use INFERSCALE_FSCK_OPTIONS_INIT");
    if (options) f.o = *options;
    if (f.o.repair && is->read_only)
        return is_room_refuse(is, "repair it");
    f.r = is_calloc(1, sizeof *f.r);
    if (!f.r) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the report; free some memory and try again");
    f.r->ok = 1;
    st = check_bank(&f);
    if (st == INFERSCALE_OK) st = check_bank_modes(&f);
    if (st == INFERSCALE_OK) st = check_vault(&f);
    if (st == INFERSCALE_OK) st = count_owners(&f);
    is_vault_files_free(&f.files);
    is_free(f.books);
    is_names_free(&f.doomed);
    is_names_free(&f.doomed_since);
    if (st == INFERSCALE_OK) *out = f.r;
    else inferscale_fsck_free(f.r);
    return st;
}

void inferscale_fsck_free(inferscale_fsck_report *report)
{
    if (!report) return;
    for (size_t i = 0; i < report->n_problems; i++) {
        is_free((char *)(uintptr_t)report->problems[i].kind);
        is_free((char *)(uintptr_t)report->problems[i].what);
    }
    is_free(report->problems);
    is_free(report);
}
