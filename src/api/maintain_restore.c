/* maintain_restore.c - a store made from a backup. The bank's place is taken last: what was interrupted is no store.
 *
 * The home is new or empty, or it has lost its bank (lost.h). Then what is left of the bank is set aside, the vault stays, and the
 * home's file has the ids go on above all that were given. */
#include <stdio.h>
#include <string.h>

#include "api/backup.h"
#include "api/lost.h"
#include "bank/home.h"
#include "base/mem.h"
#include "base/words.h"

typedef struct job {
    const is_fs *fs;
    const char *dir, *home;
    inferscale_restore_options *o;
    is_manifest m;
    bool lost;               /* home has lost its bank */
} job;

static is_status check_bank(const job *j, const uint8_t sum[IS_HASH_BYTES], uint64_t bytes)
{
    if (bytes == j->m.bank_bytes && memcmp(sum, j->m.bank_sum, IS_HASH_BYTES) == 0) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_CORRUPT, "the bank in the backup %s is not the one that was written; take another backup", j->dir);
}

/* The bank from the backup, to `to` if there is one. */
static is_status read_bank(job *j, const char *to)
{
    char path[IS_VAULT_PATH_BYTES];
    uint8_t sum[IS_HASH_BYTES];
    is_status st;

    is_inside(j->dir, "bank.sqlite", path);
    st = is_file_sum(j->fs, path, to, sum, &j->o->bank_bytes);
    if (st == INFERSCALE_E_NOTFOUND)
        return is_fail(INFERSCALE_E_CORRUPT, "the bank of the backup %s is gone; take another backup", j->dir);
    return st == INFERSCALE_OK ? check_bank(j, sum, j->o->bank_bytes) : st;
}

/* A home that lost its bank may have the file still. */
static is_status put_segment(const job *j, const is_backup_file *f, const uint8_t *data, size_t n)
{
    char path[IS_VAULT_PATH_BYTES];
    uint8_t *there = NULL;
    size_t n_there = 0;
    bool same = false;

    is_backup_path(j->home, f->name, path, NULL);
    if (j->lost && j->fs->exists(j->fs, path)) {
        same = is_backup_read(j->fs, path, f->name, &there, &n_there) == INFERSCALE_OK && n_there == n && memcmp(there, data, n) == 0;
        is_free(there);
        if (same) return INFERSCALE_OK;
        IS_TRY(is_file_shred(j->fs, path));
    }
    return is_backup_put(j->fs, j->home, f->name, data, n);
}

static is_status read_segment(job *j, const is_backup_file *f)
{
    char path[IS_VAULT_PATH_BYTES];
    uint8_t *data = NULL;
    size_t n = 0;
    is_status st;

    is_backup_path(j->dir, f->name, path, NULL);
    st = is_backup_read(j->fs, path, f->name, &data, &n);
    if (st == INFERSCALE_OK && (n != f->bytes || (f->has_sum && is_checksum(data, n) != f->sum))) st = INFERSCALE_E_CORRUPT;
    if (st == INFERSCALE_OK && j->home) st = put_segment(j, f, data, n);
    is_free(data);
    if (st == INFERSCALE_OK) {
        j->o->vault_files++;
        j->o->vault_bytes += n;
    } else if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN || st == INFERSCALE_E_INVALID) {
        j->o->bad_files++; /* a view: encoded again */
        st = INFERSCALE_OK;
    }
    return st;
}

static is_status read_vault(job *j)
{
    for (size_t i = 0; i < j->m.n; i++) {
        IS_TRY(read_segment(j, &j->m.files[i]));
        IS_TRY(is_tick(j->o->on_progress, j->o->progress_ctx, i + 1, j->m.n, j->home ? "restoring KV" : "verifying KV"));
    }
    return INFERSCALE_OK;
}

static is_status take_place(job *j, const char *part)
{
    char bank[IS_VAULT_PATH_BYTES], mark[IS_VAULT_PATH_BYTES];

    is_inside(j->home, "bank.sqlite", bank);
    is_inside(j->home, IS_RESTORE_MARK, mark);
    if (j->fs->exists(j->fs, bank))
        return is_fail(INFERSCALE_E_INVALID, "a store appeared in %s meanwhile, and nothing is ever overwritten; give a new folder", j->home);
    IS_TRY(j->fs->rename(j->fs, part, bank));
    IS_TRY(j->fs->sync_dir(j->fs, j->home));
    return j->fs->exists(j->fs, mark) ? j->fs->unlink(j->fs, mark) : INFERSCALE_OK;
}

/* Makes the home free for the bank. */
static is_status claim(job *j, const char *part)
{
    IS_TRY(is_lost_is(j->fs, j->home, &j->lost));
    if (!j->lost) return is_folder_claim(j->fs, j->home, IS_RESTORE_MARK, "bank.sqlite");
    if (j->fs->exists(j->fs, part)) IS_TRY(j->fs->unlink(j->fs, part));
    return INFERSCALE_OK;
}

/* The bank is read, and stands in the home under another name: does it belong there? Then what is left of the old one makes way. */
static is_status make_way(const job *j, const char *part)
{
    uint8_t id[IS_HOME_ID_BYTES];
    bool has = false;
    is_home h;

    if (!j->lost) return INFERSCALE_OK;
    IS_TRY(is_home_read(j->fs, j->home, &h));
    IS_TRY(is_bank_home_id(part, id, &has));
    if (h.whole && has && memcmp(h.id, id, IS_HOME_ID_BYTES))
        return is_fail(INFERSCALE_E_FOREIGN, "%s is a backup of another memory than the one that %s has lost; give another --home", j->dir,
                       j->home);
    return is_lost_set_aside(j->fs, j->home, false);
}

/* The books of what the backup does not hold: dropped, so that it is encoded again. */
static is_status settle_books(job *j)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale_fsck_options f = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale *is = NULL;
    is_status st;

    o.home = j->home;
    f.repair = 1;
    f.quick = 1;
    st = inferscale_open(&is, &o);
    if (st == INFERSCALE_OK && *inferscale_notice(is))
        st = is_fail(INFERSCALE_E_FULL, "what is remembered is restored, but %s: %s does the rest",
                     inferscale_notice(is), is_words(IS_CALL_REPAIR));
    if (st == INFERSCALE_OK) st = inferscale_fsck(is, &f, &r);
    inferscale_fsck_free(r);
    inferscale_close(is);
    return st;
}

static is_status restore(job *j)
{
    char part[IS_VAULT_PATH_BYTES];

    is_inside(j->home, "bank.sqlite.part", part);
    IS_TRY(claim(j, part));
    IS_TRY(read_bank(j, part)); /* first: without it the rest is in vain */
    IS_TRY(make_way(j, part));
    IS_TRY(read_vault(j));
    IS_TRY(is_backup_sync(j->fs, j->home));
    IS_TRY(take_place(j, part));
    return settle_books(j);
}

is_status inferscale_restore(const char *dir, const char *home, inferscale_restore_options *options)
{
    inferscale_restore_options none = INFERSCALE_RESTORE_OPTIONS_INIT;
    job j = { .fs = is_fs_default(), .dir = dir, .o = options ? options : &none };
    char *own = NULL;
    is_status st;

    if (!dir || !*dir || strlen(dir) > IS_VAULT_PATH_BYTES - 256)
        return is_fail(INFERSCALE_E_INVALID, "no folder of a backup given; give the one that %s wrote", is_words(IS_CALL_BACKUP));
    if (j.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the restore options are not initialised; use INFERSCALE_RESTORE_OPTIONS_INIT");
    j.o->created = 0;
    j.o->bank_bytes = j.o->vault_files = j.o->vault_bytes = j.o->bad_files = 0;
    IS_TRY(is_manifest_read(j.fs, dir, &j.m));
    j.o->created = j.m.created;
    if (j.o->verify_only) {
        st = read_bank(&j, NULL);
        if (st == INFERSCALE_OK) st = read_vault(&j);
    } else {
        own = home && *home ? is_strdup(home) : is_default_home();
        j.home = own;
        st = own ? restore(&j) : is_fail(INFERSCALE_E_NOMEM, "out of memory for a restore; free some memory and try again");
    }
    is_free(own);
    is_manifest_free(&j.m);
    return st;
}
