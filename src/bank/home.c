/* home.c - see home.h. The file, 160 bytes of text:
 *
 *   InferScale home 1
 *   id HEX
 *   below NUMBER CHECKSUM
 *   last NUMBER CHECKSUM
 *
 * Numbers have 20 digits and checksums (XXH3-64) 16, so that the last line can be written in its place. The first checksum is of
 * all before it, the second of the identity and the number. */
#include "bank/home.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bank/sql.h"
#include "bank/vfs.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    ID_HEX = 2 * IS_HOME_ID_BYTES,
    DIGITS = 20,
    SUM_HEX = 16,
    ID_AT = 18 + 3,                              /* behind the first line and "id " */
    BELOW_AT = ID_AT + ID_HEX + 1,               /* "below ..." */
    BELOW_SUM_AT = BELOW_AT + 6 + DIGITS + 1,
    LAST_AT = BELOW_SUM_AT + SUM_HEX + 1,        /* "last ..." */
    LAST_BYTES = 5 + DIGITS + 1 + SUM_HEX + 1,
    FILE_BYTES = LAST_AT + LAST_BYTES
};

static const char first_line[] = "InferScale home 1\n";

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static void last_line(const is_home *h, char out[LAST_BYTES + 1])
{
    uint8_t summed[IS_HOME_ID_BYTES + 8];

    memcpy(summed, h->id, IS_HOME_ID_BYTES);
    for (int i = 0; i < 8; i++) summed[IS_HOME_ID_BYTES + i] = (uint8_t)((uint64_t)h->last >> 8 * i);
    snprintf(out, LAST_BYTES + 1, "last %020" PRId64 " %016" PRIx64 "\n", h->last, is_checksum(summed, sizeof summed));
}

static void write_text(const is_home *h, char out[FILE_BYTES + 1])
{
    char hex[ID_HEX + 1];

    is_hex(h->id, IS_HOME_ID_BYTES, hex);
    snprintf(out, FILE_BYTES + 1, "%sid %s\nbelow %020" PRId64 " ", first_line, hex, h->below);
    snprintf(out + BELOW_SUM_AT, FILE_BYTES + 1 - BELOW_SUM_AT, "%016" PRIx64 "\n", is_checksum(out, BELOW_SUM_AT));
    last_line(h, out + LAST_AT);
}

/* NUMBER at p, which must be digits alone; -1 if it is none. */
static int64_t number_at(const char *p)
{
    uint64_t v = 0;

    for (int i = 0; i < DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9' || v > (uint64_t)INT64_MAX / 10) return -1;
        v = v * 10 + (uint64_t)(p[i] - '0');
    }
    return v <= (uint64_t)INT64_MAX ? (int64_t)v : -1;
}

/* Reads what can be believed: the lines that say exactly what would be written again. */
static void read_text(const char *text, is_home *h)
{
    char again[FILE_BYTES + 1];

    if (memcmp(text, first_line, sizeof first_line - 1) || !is_unhex(text + ID_AT, IS_HOME_ID_BYTES, h->id)) return;
    h->below = number_at(text + BELOW_AT + 6);
    h->last = number_at(text + LAST_AT + 5);
    if (h->below < 1) return;
    write_text(h, again);
    h->whole = memcmp(text, again, LAST_AT) == 0;
    if (h->last < 0 || memcmp(text + LAST_AT, again + LAST_AT, LAST_BYTES)) h->last = -1;
}

static char *file_of(const char *folder)
{
    return is_path_join(folder, IS_HOME_NAME);
}

static is_status no_memory(const char *folder)
{
    return is_fail(INFERSCALE_E_NOMEM, "no memory to read the identity of %s; free some memory and try again", folder);
}

is_status is_home_read(const is_fs *fs, const char *folder, is_home *out)
{
    char text[FILE_BYTES + 1], *path = file_of(folder);
    is_file *f = NULL;
    uint64_t size = 0;
    is_status st;

    *out = (is_home){ .last = -1 };
    if (!path) return no_memory(folder);
    st = fs->open(fs, path, IS_OPEN_READ, &f);
    is_free(path);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    IS_TRY(st);
    st = fs->size(fs, f, &size);
    if (st == INFERSCALE_OK && size == FILE_BYTES) st = fs->pread(fs, f, text, FILE_BYTES, 0);
    fs->close(fs, f);
    out->there = st == INFERSCALE_OK || st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_INVALID;
    if (!out->there) return st;
    if (st == INFERSCALE_OK && size == FILE_BYTES) read_text(text, out);
    return INFERSCALE_OK;
}

static is_status write_home(const is_fs *fs, const char *path, const is_home *h)
{
    char text[FILE_BYTES + 1];

    write_text(h, text);
    return is_file_write_atomic(fs, path, text, FILE_BYTES);
}

/* ---- Giving ids ---------------------------------------------------------------------------------------------------------- */

/* With the bank's write lock held: from now on ids up to `last` count as given. */
is_status bank_record_ids(is_bank *b, int64_t last)
{
    const is_fs *fs = is_fs_default();
    char line[LAST_BYTES + 1];
    is_file *f = NULL;
    is_status st;

    if (!b->home_file) return INFERSCALE_OK;
    b->home->last = last;
    b->gave_ids = true;
    if (last >= b->home->below) {
        b->home->below = last + 1 + IS_HOME_BLOCK;
        st = write_home(fs, b->home_file, b->home);
        if (st != INFERSCALE_OK) b->home->below = last; /* not written: the next one tries again */
        return st;
    }
    st = fs->open(fs, b->home_file, IS_OPEN_RDWR, &f);
    if (st == INFERSCALE_E_NOTFOUND) return write_home(fs, b->home_file, b->home); /* somebody deleted it */
    IS_TRY(st);
    last_line(b->home, line);
    st = fs->pwrite(fs, f, line, LAST_BYTES, LAST_AT);
    fs->close(fs, f);
    return st;
}

/* ---- Bank and file ------------------------------------------------------------------------------------------------------- */

typedef struct held {
    uint8_t id[IS_HOME_ID_BYTES];
    bool has_id;
    int64_t seq;     /* the highest id that the bank has given */
} held;

static is_status read_bank(is_bank *b, held *out)
{
    is_status st;
    sql q = sql_open(b, "SELECT id FROM home");

    *out = (held){ .seq = 0 };
    if (sql_row(&q) && sqlite3_column_bytes(q.stmt, 0) == IS_HOME_ID_BYTES) {
        memcpy(out->id, sqlite3_column_blob(q.stmt, 0), IS_HOME_ID_BYTES);
        out->has_id = true;
    }
    IS_TRY(sql_end(&q));
    q = sql_open(b, "SELECT seq FROM sqlite_sequence WHERE name = 'items'");
    out->seq = sql_one_i64(&q, 0, &st);
    return st;
}

static is_status set_id(is_bank *b, const uint8_t id[IS_HOME_ID_BYTES])
{
    sql q = sql_open(b, "UPDATE home SET id = ?1");

    sql_blob(&q, id, IS_HOME_ID_BYTES);
    return sql_run(&q, NULL);
}

is_status is_bank_codec(is_bank *b, char out[IS_BANK_CODEC_BYTES])
{
    is_status st;
    sql q;

    out[0] = '\0';
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT codec FROM home");
    if (sql_row(&q)) snprintf(out, IS_BANK_CODEC_BYTES, "%s", (const char *)sqlite3_column_text(q.stmt, 0));
    st = sql_end(&q);
    bank_unlock(b);
    return st;
}

is_status is_bank_set_codec(is_bank *b, const char *codec)
{
    sql q;

    IS_TRY(bank_begin(b));
    q = sql_open(b, "UPDATE home SET codec = ?1");
    sql_text(&q, codec);
    return bank_end(b, sql_run(&q, NULL));
}

static is_status set_sequence(is_bank *b, int64_t seq)
{
    int64_t changed = 0;
    sql q = sql_open(b, "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'items'");

    sql_i64(&q, seq);
    IS_TRY(sql_run(&q, &changed));
    if (changed) return INFERSCALE_OK;
    q = sql_open(b, "INSERT INTO sqlite_sequence(name, seq) VALUES('items', ?1)");
    sql_i64(&q, seq);
    return sql_run(&q, NULL);
}

static is_status another_home(const is_bank *b, const is_home *h, const held *bank)
{
    char ours[ID_HEX + 1], theirs[ID_HEX + 1];

    is_hex(h->id, IS_HOME_ID_BYTES, ours);
    is_hex(bank->id, IS_HOME_ID_BYTES, theirs);
    return is_fail(INFERSCALE_E_FOREIGN, "the bank %s belongs to another memory (%.8s...) than the folder it lies in (%.8s..., says "
                   "%s): put the folder's own bank back, or move this one away and `inferscale restore` a backup", b->path, theirs, ours,
                   IS_HOME_NAME);
}

/* The bank lacks ids that were given in this folder. */
static bool is_older(const is_home *h, const held *bank)
{
    return h->whole && (h->last < 0 || h->last > bank->seq) && h->below - 1 > bank->seq;
}

static bool differs(const is_home *h, const held *bank)
{
    return !bank->has_id || !h->whole || is_older(h, bank) || bank->seq >= h->below;
}

static is_status compare(is_bank *b, const char *folder, is_home *h, held *bank)
{
    IS_TRY(is_home_read(is_fs_default(), folder, h));
    IS_TRY(read_bank(b, bank));
    return h->whole && bank->has_id && memcmp(h->id, bank->id, IS_HOME_ID_BYTES) ? another_home(b, h, bank) : INFERSCALE_OK;
}

/* In a transaction, so that no other process gives ids meanwhile. */
static is_status bring_together(is_bank *b, const char *folder, const char *path, is_home *h)
{
    held bank;
    bool older;

    IS_TRY(compare(b, folder, h, &bank));
    if (h->there && !h->whole) is_log(IS_LOG_WARN, "%s cannot be read as what it was and is made anew", path);
    older = is_older(h, &bank);
    if (!h->whole && bank.has_id) memcpy(h->id, bank.id, IS_HOME_ID_BYTES);
    if (!h->whole && !bank.has_id) is_random(h->id, IS_HOME_ID_BYTES);
    if (!bank.has_id) IS_TRY(set_id(b, h->id));
    if (older) {
        is_log(IS_LOG_WARN, "the bank %s is older than this folder: ids up to %lld were given here, and new ones begin at %lld", b->path,
               (long long)h->below - 1, (long long)h->below);
        IS_TRY(set_sequence(b, h->below - 1));
        bank.seq = h->below - 1;
    }
    if (!older && h->whole && bank.seq < h->below) return INFERSCALE_OK;
    h->last = bank.seq;
    if (!h->whole || h->below <= bank.seq) h->below = bank.seq + 1 + IS_HOME_BLOCK;
    return write_home(is_fs_default(), path, h);
}

is_status is_bank_settle_home(is_bank *b, const char *folder)
{
    char *path = file_of(folder);
    is_home *h = is_calloc(1, sizeof *h);
    held bank;
    is_status st = path && h ? bank_read_begin(b) : no_memory(folder);

    if (st == INFERSCALE_OK) st = bank_read_end(b, compare(b, folder, h, &bank));
    if (st == INFERSCALE_OK && !b->read_only && differs(h, &bank)) {
        st = bank_begin(b);
        if (st == INFERSCALE_OK) st = bank_end(b, bring_together(b, folder, path, h));
    }
    if (st != INFERSCALE_OK || b->read_only) {
        is_free(path);
        is_free(h);
        return st;
    }
    b->home_file = path;
    b->home = h;
    return INFERSCALE_OK;
}

void bank_close_home(is_bank *b)
{
    const is_fs *fs = is_fs_default();
    is_file *f = NULL;

    /* The last id is made durable when there is time for it. */
    if (b->gave_ids && fs->open(fs, b->home_file, IS_OPEN_RDWR, &f) == INFERSCALE_OK) {
        if (fs->sync(fs, f) != INFERSCALE_OK) is_log(IS_LOG_WARN, "%s", is_error());
        fs->close(fs, f);
    }
    is_free(b->home_file);
    is_free(b->home);
}

is_status is_bank_home_id(const char *path, uint8_t id[IS_HOME_ID_BYTES], bool *has)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, bank_vfs());
    const is_bank b = { .db = db, .path = (char *)(uintptr_t)path };
    int64_t tables = 0;
    is_status st;

    *has = false;
    if (rc == SQLITE_OK) rc = sqlite3_prepare_v2(db, "SELECT count(*) FROM sqlite_master WHERE name = 'home'", -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) tables = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    s = NULL;
    if (rc == SQLITE_ROW && tables) {
        rc = sqlite3_prepare_v2(db, "SELECT id FROM home", -1, &s, NULL);
        if (rc == SQLITE_OK) rc = sqlite3_step(s);
        if (rc == SQLITE_ROW && sqlite3_column_bytes(s, 0) == IS_HOME_ID_BYTES) {
            memcpy(id, sqlite3_column_blob(s, 0), IS_HOME_ID_BYTES);
            *has = true;
        }
    }
    st = bank_fail(&b, rc);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return st;
}
