/* prove.c - searching the store for what was forgotten, and judging what is found.
 *
 * A hit in the database is accounted for by the rows that hold the same bytes on purpose: each needle is counted in the file's bytes
 * and in the values of all living rows; what the file has more of is a trace, wherever it lies (a free page, a page's unused part, a
 * copy in another table). A hit in a vault file is accounted for if the books name that segment: its rows are then equal by right
 * (an equal text, the same first tokens behind the same header). A hit anywhere else is a trace. */
#include "api/prove.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bank/scan.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/needles.h"

enum {
    MAX_BLOCKS = 1 << 20, MIN_BLOCKS_A_SEGMENT = 64, CHUNK_BYTES = 1 << 20, PATH_BYTES = 4096, DEPTH_MAX = 16,
    SEEN_MAX = 4096,     /* places in the database that are remembered for the report */
    WRITER_WAIT_MS = 1000, WRITER_POLL_MS = 20
};

enum { TEXT = 1, NORMALISED, VECTOR, TOKENS, ROWS };
static const char *const kind_names[] = { "", "text", "normalised text", "vector", "token ids", "keys and values" };

typedef struct tally { uint32_t in_file, in_rows; } tally;
typedef struct place { uint32_t needle; int kind; uint64_t end; } place;

struct is_proof {
    inferscale *is;
    is_needles *needles;
    uint64_t unread;             /* segments that could not be read */
    tally *tallies;              /* [needles] of the database */
    place *places;               /* [SEEN_MAX] */
    size_t n_places;
    int file;                    /* of the bank: which one is being scanned */
    uint32_t wait_ms;            /* for others */
    const char *path;            /* of a file: within the store */
    uint64_t hits;               /* in the file being scanned */
    place first;
    const char *table;           /* of a row */
    int64_t row;
    bool row_told;
    uint8_t *buffer;             /* [CHUNK_BYTES] */
    inferscale_progress_fn progress;
    void *progress_ctx;
    inferscale_forget_report *report;
};

/* ---- What is looked for -------------------------------------------------------------------------------------------------- */

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "no memory for the proof; free some and try again");
}

is_status is_proof_new(inferscale *is, is_proof **out)
{
    is_proof *p = is_calloc(1, sizeof *p);

    *out = p;
    if (!p) return no_memory();
    p->is = is;
    p->places = is_malloc(SEEN_MAX * sizeof *p->places);
    p->buffer = is_malloc(CHUNK_BYTES);
    if (p->places && p->buffer && is_needles_new(MAX_BLOCKS, &p->needles) == INFERSCALE_OK) return INFERSCALE_OK;
    is_proof_free(p);
    *out = NULL;
    return no_memory();
}

void is_proof_free(is_proof *p)
{
    if (!p) return;
    is_needles_free(p->needles);
    if (p->buffer) is_wipe(p->buffer, CHUNK_BYTES);
    is_free(p->buffer);
    is_free(p->places);
    is_free(p->tallies);
    is_free(p);
}

is_status is_proof_gone(void *ctx, int kind, const void *bytes, size_t n)
{
    is_proof *p = ctx;
    char *normalised;
    is_status st;

    if (kind == IS_GONE_VECTOR) return is_needles_add(p->needles, VECTOR, bytes, n, 64, 0);
    IS_TRY(is_needles_add(p->needles, TEXT, bytes, n, 32, 0));
    normalised = is_bank_normalised(bytes);
    if (!normalised) return no_memory();
    st = is_needles_add(p->needles, NORMALISED, normalised, strlen(normalised), 32, 0);
    is_wipe(normalised, strlen(normalised));
    is_free(normalised);
    return st;
}

static is_status add_segment(is_proof *p, const is_segment *s, size_t budget)
{
    const is_segment_desc *d = is_segment_info(s);
    size_t n_heads = 0;

    IS_TRY(is_needles_add(p->needles, TOKENS, d->tokens, d->n_tokens * sizeof *d->tokens, 32, 0));
    for (uint32_t i = 0; i < d->geometry->n_planes; i++) n_heads += d->geometry->planes[i].n_heads;
    for (uint32_t i = 0; i < d->geometry->n_planes; i++)
        for (uint32_t h = 0; h < d->geometry->planes[i].n_heads; h++)
            IS_TRY(is_needles_add(p->needles, ROWS, is_segment_head(s, i, h),
                                  d->n_tokens * is_codec_row_bytes(d->codec, d->geometry->planes[i].head_dim), 64,
                                  budget / n_heads + 1));
    return INFERSCALE_OK;
}

is_status is_proof_segments(is_proof *p, const is_names *names)
{
    size_t budget = names->n ? MAX_BLOCKS / 2 / names->n : 0;

    if (budget < MIN_BLOCKS_A_SEGMENT) budget = MIN_BLOCKS_A_SEGMENT;
    for (size_t i = 0; i < names->n; i++) {
        is_segment *s = NULL;
        is_status st = is_vault_get(p->is->vault, names->names[i], NULL, &s);

        if (st == INFERSCALE_OK) st = add_segment(p, s, budget);
        else if (st != INFERSCALE_E_NOMEM) p->unread++, st = INFERSCALE_OK; /* not there, or not to be read just now */
        is_segment_unref(s);
        IS_TRY(st);
    }
    return INFERSCALE_OK;
}

/* ---- Reporting ----------------------------------------------------------------------------------------------------------- */

/* A line at the end of a text of the report, if it still fits whole. */
static void line(char *text, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void line(char *text, size_t cap, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text + used, cap - used, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n + 1 >= cap - used) text[used] = 0;
}

#define TRACE(p, ...) line((p)->report->trace_text, sizeof (p)->report->trace_text, __VA_ARGS__)
#define ALLOWED(p, ...) line((p)->report->allowed_text, sizeof (p)->report->allowed_text, __VA_ARGS__)

static is_status scanned(is_proof *p, size_t n)
{
    p->report->scanned_bytes += n;
    if (p->progress && p->progress(p->progress_ctx, p->report->scanned_bytes, 0, "searching"))
        return is_fail(INFERSCALE_E_CANCELLED, "the proof was cancelled; all is forgotten, and nothing is proven");
    return INFERSCALE_OK;
}

/* ---- The bank ------------------------------------------------------------------------------------------------------------ */

static is_status hit_in_bank(void *ctx, uint32_t needle, int kind, uint64_t end)
{
    is_proof *p = ctx;

    if (p->file == IS_SCAN_DATABASE) {
        p->tallies[needle].in_file++;
        if (p->n_places < SEEN_MAX) p->places[p->n_places++] = (place){ needle, kind, end };
        return INFERSCALE_OK;
    }
    p->report->traces++;
    TRACE(p, "bank.sqlite-shm, byte %llu: %s\n", (unsigned long long)end, kind_names[kind]);
    return INFERSCALE_OK;
}

static is_status bank_begin(void *ctx, int file)
{
    is_proof *p = ctx;

    p->file = file;
    p->report->scanned_files++;
    is_needles_begin(p->needles);
    return INFERSCALE_OK;
}

static is_status bank_bytes(void *ctx, const uint8_t *bytes, size_t n)
{
    is_proof *p = ctx;

    IS_TRY(is_needles_feed(p->needles, bytes, n, hit_in_bank, p));
    return scanned(p, n);
}

static is_status hit_in_row(void *ctx, uint32_t needle, int kind, uint64_t end)
{
    is_proof *p = ctx;
    (void)end;

    p->tallies[needle].in_rows++;
    if (p->tallies[needle].in_file && !p->row_told) /* a line a row is enough */
        ALLOWED(p, "bank.sqlite, %s %lld: it is kept, and has the same %s itself\n", p->table, (long long)p->row, kind_names[kind]);
    p->row_told = p->row_told || p->tallies[needle].in_file;
    return INFERSCALE_OK;
}

static is_status bank_value(void *ctx, const char *table, int64_t id, const void *bytes, size_t n)
{
    is_proof *p = ctx;

    p->table = table;
    p->row = id;
    p->row_told = false;
    is_needles_begin(p->needles);
    return is_needles_feed(p->needles, bytes, n, hit_in_row, p);
}

static void judge_bank(is_proof *p)
{
    for (size_t i = 0; i < is_needles_count(p->needles); i++) {
        const tally t = p->tallies[i];

        p->report->allowed += t.in_file < t.in_rows ? t.in_file : t.in_rows;
        if (t.in_file > t.in_rows) p->report->traces += t.in_file - t.in_rows;
    }
    for (size_t i = 0; i < p->n_places; i++) {
        const place *at = &p->places[i];
        const tally t = p->tallies[at->needle];

        if (t.in_file > t.in_rows)
            TRACE(p, "bank.sqlite, byte %llu: %s (%u times in the file, %u in its rows)\n", (unsigned long long)at->end,
                  kind_names[at->kind], t.in_file, t.in_rows);
    }
}

static is_status search_bank(is_proof *p, uint32_t wait_ms)
{
    const is_bank_scan scan = { .ctx = p, .begin = bank_begin, .bytes = bank_bytes, .value = bank_value };

    IS_TRY(is_bank_scan_all(is_bank_path(p->is->bank), wait_ms, &scan));
    judge_bank(p);
    return INFERSCALE_OK;
}

/* ---- All other files ----------------------------------------------------------------------------------------------------- */

/* A prompt's header, kept for engine vllm, holds no fact; but the first layer's rows of a token depend on that token alone, so those that
 * both have (a blank, "the") are equal by right. Its token ids and everything else are looked for as anywhere. */
static bool equal_by_right(const is_proof *p, int kind)
{
    return kind == ROWS && strncmp(p->path, "vllm/heads/", 11) == 0;
}

static is_status hit_in_file(void *ctx, uint32_t needle, int kind, uint64_t end)
{
    is_proof *p = ctx;

    if (equal_by_right(p, kind)) {
        if (p->report->allowed++ == 0) ALLOWED(p, "%s: a prompt's header, which holds no memory, has the same keys and values of single tokens\n",
                                               p->path);
        return INFERSCALE_OK;
    }
    if (p->hits++ == 0) p->first = (place){ needle, kind, end };
    return INFERSCALE_OK;
}

static is_status feed_file(is_proof *p, const is_fs *fs, is_file *f)
{
    uint64_t size = 0;

    IS_TRY(fs->size(fs, f, &size));
    is_needles_begin(p->needles);
    p->hits = 0;
    for (uint64_t at = 0; at < size; at += CHUNK_BYTES) {
        size_t n = size - at < CHUNK_BYTES ? (size_t)(size - at) : CHUNK_BYTES;
        is_status st = fs->pread(fs, f, p->buffer, n, at);

        if (st == INFERSCALE_E_CORRUPT) break; /* it became shorter: being overwritten and cut, or removed */
        IS_TRY(st);
        IS_TRY(is_needles_feed(p->needles, p->buffer, n, hit_in_file, p));
        IS_TRY(scanned(p, n));
    }
    return INFERSCALE_OK;
}

/* vault/ab/abcd....seg whose name the books hold, and whose bytes are what was written. */
static is_status is_living_segment(is_proof *p, const char *full, bool *living)
{
    const char *slash = strrchr(p->path, '/');
    is_segment *s = NULL;
    is_status st = INFERSCALE_OK;
    bool named = false;

    *living = false;
    if (strncmp(p->path, "vault/", 6) != 0 || !slash || strlen(slash + 1) != 2 * IS_HASH_BYTES + 4 || strcmp(slash + 65, ".seg") != 0)
        return INFERSCALE_OK;
    if (is_segment_read(is_vault_fs(p->is->vault), full, &s) != INFERSCALE_OK) return INFERSCALE_OK;
    named = strncmp(slash + 1, p->path + 6, 2) == 0;
    if (named) st = is_bank_has_segment(p->is->bank, is_segment_info(s)->name, &named);
    is_segment_unref(s);
    *living = st == INFERSCALE_OK && named;
    return st;
}

/* How long what is not in the books may take to get there, or to go. A file that another forgetting took out of the way stays until the
 * questions that may use it have ended; that one waits for them as this one did. */
static uint32_t patience(const is_proof *p)
{
    const char *name = strrchr(p->path, '/');

    if (strncmp(p->path, "vault/", 6) != 0) return 0;
    return strncmp(p->path, "vault/tmp/", 10) == 0 && is_vault_at_work(name + 1) && p->wait_ms > WRITER_WAIT_MS ? p->wait_ms : WRITER_WAIT_MS;
}

/* Somebody may be writing it right now, for another fact: then it soon has its row in the books, its name changes, or it goes. */
static is_status settle(is_proof *p, const is_fs *fs, const char *full, bool *living, bool *gone)
{
    const struct timespec pause = { 0, WRITER_POLL_MS * 1000000L };
    const uint32_t most = patience(p);

    *gone = false;
    IS_TRY(is_living_segment(p, full, living));
    for (uint32_t waited = 0; !*living && !*gone && waited < most; waited += WRITER_POLL_MS) {
        nanosleep(&pause, NULL);
        *gone = !fs->exists(fs, full);
        if (!*gone) IS_TRY(is_living_segment(p, full, living));
    }
    return INFERSCALE_OK;
}

static is_status judge_file(is_proof *p, const is_fs *fs, const char *full)
{
    bool living, gone;

    IS_TRY(settle(p, fs, full, &living, &gone));
    if (living) {
        p->report->allowed += p->hits;
        ALLOWED(p, "%s: the keys and values of a memory that is kept have the same %s themselves, %llu times\n", p->path,
                kind_names[p->first.kind], (unsigned long long)p->hits);
    } else if (!gone) {
        p->report->traces += p->hits;
        TRACE(p, "%s, byte %llu: %s, %llu times\n", p->path, (unsigned long long)p->first.end, kind_names[p->first.kind],
              (unsigned long long)p->hits);
    }
    return INFERSCALE_OK;
}

static is_status search_file(is_proof *p, const char *full)
{
    const is_fs *fs = is_fs_default();
    is_file *f = NULL;
    is_stat s;
    is_status st = fs->stat(fs, full, &s);

    if (st == INFERSCALE_E_NOTFOUND || (st == INFERSCALE_OK && !s.is_regular)) return INFERSCALE_OK;
    if (st == INFERSCALE_OK) st = fs->open(fs, full, IS_OPEN_READ, &f);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* it went meanwhile */
    IS_TRY(st);
    p->report->scanned_files++;
    st = feed_file(p, fs, f);
    fs->close(fs, f);
    return st == INFERSCALE_OK && p->hits ? judge_file(p, fs, full) : st;
}

typedef struct folder {
    is_proof *p;
    const char *full;
    int depth;
} folder;

static is_status search_folder(is_proof *p, const char *full, int depth);

static is_status search_entry(void *ctx, const char *name, bool is_dir)
{
    /* The bank's files are searched through SQLite; opening them here would drop its locks. */
    static const char *const not_here[] = { "bank.sqlite", "bank.sqlite-wal", "bank.sqlite-shm" };
    const folder *d = ctx;
    char *full;
    is_status st;

    for (size_t i = 0; d->depth == 0 && i < sizeof not_here / sizeof *not_here; i++)
        if (strcmp(name, not_here[i]) == 0) return INFERSCALE_OK;
    full = is_path_join(d->full, name);
    if (!full) return no_memory();
    d->p->path = full + strlen(d->p->is->home);
    d->p->path += *d->p->path == '/';
    st = is_dir ? search_folder(d->p, full, d->depth + 1) : search_file(d->p, full);
    is_free(full);
    return st;
}

static is_status search_folder(is_proof *p, const char *full, int depth)
{
    folder d = { .p = p, .full = full, .depth = depth };
    is_status st;

    if (depth > DEPTH_MAX)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "folders in the store lie more than %d deep, and nothing is proven for them; move %s away",
                       DEPTH_MAX, full);
    st = is_fs_default()->list(is_fs_default(), full, search_entry, &d);
    return st == INFERSCALE_E_NOTFOUND && depth ? INFERSCALE_OK : st;
}

/* ---- All ----------------------------------------------------------------------------------------------------------------- */

is_status is_proof_search(is_proof *p, uint32_t wait_ms, inferscale_progress_fn progress, void *progress_ctx,
                          inferscale_forget_report *report)
{
    p->wait_ms = wait_ms;
    p->progress = progress;
    p->progress_ctx = progress_ctx;
    p->report = report;
    p->tallies = is_calloc(is_needles_count(p->needles) + 1, sizeof *p->tallies);
    if (!p->tallies) return no_memory();
    report->needles = is_needles_count(p->needles);
    report->unsearched = is_needles_left_out(p->needles) + p->unread;
    IS_TRY(search_bank(p, wait_ms));
    IS_TRY(search_folder(p, p->is->home, 0));
    if (report->traces)
        return is_fail(INFERSCALE_E_TRACE, "all is forgotten, but %llu traces of it were found: %.*s; remove what holds them",
                       (unsigned long long)report->traces, (int)strcspn(report->trace_text, "\n"), report->trace_text);
    report->proven = report->needles > 0; /* who looked for nothing has shown nothing */
    return INFERSCALE_OK;
}
