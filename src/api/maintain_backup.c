/* maintain_backup.c - a store copied while it is in use, and made again from the copy.
 *
 * The bank comes first, as it is at one instant; then the KV files that its copy names. A file that is gone by then (its fact was
 * forgotten) or damaged is left out: KV is a view, and encoded again after a restore. The manifest comes last, so that what was
 * interrupted is never taken for whole. */
#include <stdio.h>
#include <string.h>

#include "api/backup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

typedef struct job {
    const is_fs *fs;
    const char *dir;
    inferscale *is;
    inferscale_backup_options *o;
    is_manifest m;
    is_book *books;
    size_t n_books;
} job;

/* ---- Backup ----------------------------------------------------------------------------------------------------------------------- */

static is_status copy_bank(job *j)
{
    char path[IS_VAULT_PATH_BYTES];
    is_bank *copy = NULL;
    is_status st;

    is_inside(j->dir, "bank.sqlite", path);
    IS_TRY(is_bank_copy(is_bank_path(j->is->bank), path, j->o->on_progress, j->o->progress_ctx));
    IS_TRY(is_bank_open(path, true, &copy));
    st = is_bank_books(copy, 0, &j->books, &j->n_books);
    is_bank_close(copy);
    IS_TRY(st);
    IS_TRY(is_file_sum(j->fs, path, NULL, j->m.bank_sum, &j->m.bank_bytes));
    j->o->bank_bytes = j->m.bank_bytes;
    return INFERSCALE_OK;
}

/* A second name. *done = false: not possible here, copy it. */
static is_status link_file(job *j, const char *from, is_backup_file *f, bool *done)
{
    char path[IS_VAULT_PATH_BYTES], folder[IS_VAULT_PATH_BYTES];
    is_stat s;
    is_status st;

    *done = false;
    is_backup_path(j->dir, f->name, path, folder);
    if (!j->fs->exists(j->fs, folder)) IS_TRY(is_file_mkdirs(j->fs, folder));
    st = j->fs->link(j->fs, from, path);
    if (st == INFERSCALE_E_UNSUPPORTED) return INFERSCALE_OK;
    if (st == INFERSCALE_OK) st = j->fs->stat(j->fs, path, &s);
    if (st != INFERSCALE_OK) return st;
    f->bytes = s.bytes;
    *done = true;
    j->o->linked_files++;
    return INFERSCALE_OK;
}

static is_status copy_file(job *j, const char *from, is_backup_file *f)
{
    uint8_t *data = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_backup_read(j->fs, from, f->name, &data, &n));
    f->bytes = n;
    f->sum = is_checksum(data, n);
    f->has_sum = true;
    st = is_backup_put(j->fs, j->dir, f->name, data, n);
    is_free(data);
    return st;
}

static is_status copy_segment(job *j, const uint8_t *name)
{
    is_backup_file *f = &j->m.files[j->m.n];
    char from[IS_VAULT_PATH_BYTES];
    bool done = false;
    is_status st = INFERSCALE_OK;

    memset(f, 0, sizeof *f);
    memcpy(f->name, name, IS_HASH_BYTES);
    is_vault_path(j->is->vault, name, from);
    if (!j->fs->exists(j->fs, from)) st = INFERSCALE_E_NOTFOUND;
    if (st == INFERSCALE_OK && j->o->link) st = link_file(j, from, f, &done);
    if (st == INFERSCALE_OK && !done) st = copy_file(j, from, f);
    if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN) {
        j->o->missing_files++;
        return INFERSCALE_OK;
    }
    if (st != INFERSCALE_OK) return st;
    j->m.n++;
    j->o->vault_files++;
    j->o->vault_bytes += f->bytes;
    return INFERSCALE_OK;
}

static is_status copy_vault(job *j)
{
    j->m.files = is_malloc((j->n_books + 1) * sizeof *j->m.files);
    if (!j->m.files) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a backup; free some memory and try again");
    for (size_t i = 0, run; i < j->n_books; i += run) {
        run = is_book_run(j->books, j->n_books, i);
        IS_TRY(copy_segment(j, j->books[i].name));
        IS_TRY(is_tick(j->o->on_progress, j->o->progress_ctx, i + run, j->n_books, "copying KV"));
    }
    return INFERSCALE_OK;
}

static is_status finish(job *j)
{
    char path[IS_VAULT_PATH_BYTES];

    IS_TRY(is_backup_sync(j->fs, j->dir));
    IS_TRY(is_manifest_write(j->fs, j->dir, &j->m));
    is_inside(j->dir, IS_BACKUP_MARK, path); /* whole from here on: a mark that stays says nothing against the manifest */
    if (j->fs->unlink(j->fs, path) != INFERSCALE_OK) is_log(IS_LOG_WARN, "backup: %s", is_error());
    return INFERSCALE_OK;
}

is_status inferscale_backup(inferscale *is, const char *dir, inferscale_backup_options *options)
{
    inferscale_backup_options none = INFERSCALE_BACKUP_OPTIONS_INIT;
    job j = { .fs = is_fs_default(), .dir = dir, .is = is, .o = options ? options : &none };
    is_status st;

    IS_TRY(is_handle_check(is));
    if (j.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the backup options are not initialised; use INFERSCALE_BACKUP_OPTIONS_INIT");
    j.o->bank_bytes = j.o->vault_files = j.o->vault_bytes = j.o->linked_files = j.o->missing_files = 0;
    IS_TRY(is_folder_claim(j.fs, dir, IS_BACKUP_MARK, IS_BACKUP_MANIFEST));
    j.m.created = is_now_epoch();
    st = copy_bank(&j);
    if (st == INFERSCALE_OK && !j.o->no_vault) st = copy_vault(&j);
    if (st == INFERSCALE_OK) st = finish(&j);
    is_free(j.books);
    is_manifest_free(&j.m);
    return st;
}
