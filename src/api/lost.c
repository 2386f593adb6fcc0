/* lost.c - see lost.h. */
#include "api/lost.h"

#include <stdio.h>
#include <string.h>

#include "api/backup.h"
#include "api/room.h"
#include "bank/home.h"
#include "base/log.h"
#include "base/mem.h"

enum { LOST_MAX = 1000 };

/* ---- Traces -------------------------------------------------------------------------------------------------------------- */

typedef struct look {
    const is_fs *fs;
    const char *folder;
    is_traces *out;
} look;

static void found(is_traces *t, const char *what)
{
    if (!t->any) snprintf(t->first, sizeof t->first, "%s", what);
    t->any = true;
}

/* Only what we make ourselves: the vault may be a disk of its own, with things that its filesystem put there. */
static is_status look_in_vault(void *ctx, const char *name, bool is_dir)
{
    const look *l = ctx;
    uint8_t byte;

    if (!is_dir) return INFERSCALE_OK;
    if (strcmp(name, "tmp") == 0) found(l->out, "vault");
    if (strlen(name) != 2 || !is_unhex(name, 1, &byte)) return INFERSCALE_OK;
    found(l->out, "vault");
    l->out->kv = true;
    return INFERSCALE_OK;
}

static is_status has_bytes(const look *l, const char *name, bool *has)
{
    char path[IS_VAULT_PATH_BYTES];
    is_stat s;
    is_status st;

    is_inside(l->folder, name, path);
    st = l->fs->stat(l->fs, path, &s);
    *has = st == INFERSCALE_OK && (s.bytes > 0 || !s.is_regular);
    return st == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : st;
}

/* A log without its database. Beside a database the log of a new bank may have bytes before its first commit is whole. */
static is_status look_at_log(const look *l)
{
    bool log = false, bank = false;

    IS_TRY(has_bytes(l, "bank.sqlite-wal", &log));
    if (log) IS_TRY(has_bytes(l, "bank.sqlite", &bank)); /* in this order: another process may be making both */
    if (log && !bank) found(l->out, "bank.sqlite-wal");
    return INFERSCALE_OK;
}

static is_status look_at(void *ctx, const char *name, bool is_dir)
{
    const look *l = ctx;
    char path[IS_VAULT_PATH_BYTES];
    look inner = *l;

    if (strcmp(name, IS_HOME_NAME) == 0 || strcmp(name, IS_RESERVE_NAME) == 0 || strcmp(name, "leases") == 0) found(l->out, name);
    if (strcmp(name, IS_RESTORE_MARK) == 0) l->out->restoring = true;
    if (strcmp(name, "bank.sqlite-wal") == 0) IS_TRY(look_at_log(l));
    if (strcmp(name, "vault") != 0) return INFERSCALE_OK;
    is_inside(l->folder, name, path);
    inner.folder = path;
    return l->fs->list(l->fs, path, look_in_vault, &inner);
}

is_status is_traces_look(const is_fs *fs, const char *home, is_traces *out)
{
    look l = { .fs = fs, .folder = home, .out = out };

    *out = (is_traces){ .any = false };
    if (!fs->exists(fs, home)) return INFERSCALE_OK;
    IS_TRY(fs->list(fs, home, look_at, &l));
    if (out->restoring) found(out, IS_RESTORE_MARK);
    return INFERSCALE_OK;
}

/* ---- Setting aside ------------------------------------------------------------------------------------------------------- */

static is_status next_folder(const is_fs *fs, const char *home, char out[IS_VAULT_PATH_BYTES])
{
    for (int i = 1; i <= LOST_MAX; i++) {
        char name[32];

        snprintf(name, sizeof name, IS_LOST_FOLDER "%d", i);
        is_inside(home, name, out);
        if (!fs->exists(fs, out)) return is_file_mkdirs(fs, out);
    }
    return is_fail(INFERSCALE_E_FULL, "%s holds %d folders of lost memories already; `inferscale gc --unnamed` removes them", home, LOST_MAX);
}

is_status is_lost_set_aside(const is_fs *fs, const char *home, bool with_vault)
{
    static const char *const names[] = { "vault", "bank.sqlite-wal", "bank.sqlite-shm", "bank.sqlite-journal", "bank.sqlite" };
    char to[IS_VAULT_PATH_BYTES], from[IS_VAULT_PATH_BYTES], path[IS_VAULT_PATH_BYTES];
    bool made = false;

    for (size_t i = with_vault ? 0 : 1; i < sizeof names / sizeof *names; i++) {
        is_inside(home, names[i], from);
        if (!fs->exists(fs, from)) continue;
        if (!made) IS_TRY(next_folder(fs, home, to));
        made = true;
        is_inside(to, names[i], path);
        IS_TRY(fs->rename(fs, from, path));
    }
    if (!made) return INFERSCALE_OK;
    is_log(IS_LOG_WARN, "what is left of a lost memory was set aside in %s", to);
    IS_TRY(fs->sync_dir(fs, to));
    return fs->sync_dir(fs, home);
}

static is_status set_all_aside(const is_fs *fs, const char *home)
{
    char mark[IS_VAULT_PATH_BYTES];

    IS_TRY(is_lost_set_aside(fs, home, true));
    is_inside(home, IS_RESTORE_MARK, mark);
    return fs->exists(fs, mark) ? fs->unlink(fs, mark) : INFERSCALE_OK;
}

is_status is_lost_is(const is_fs *fs, const char *home, bool *lost)
{
    char path[IS_VAULT_PATH_BYTES];
    is_bank *b = NULL;
    is_traces t;
    is_status st;

    *lost = false;
    IS_TRY(is_traces_look(fs, home, &t));
    if (!t.any || t.restoring) return INFERSCALE_OK;
    is_inside(home, "bank.sqlite", path);
    st = is_bank_open_existing(path, true, lost, &b);
    is_bank_close(b);
    if (st == INFERSCALE_E_CORRUPT) *lost = true;
    return st == INFERSCALE_E_NOMEM || st == INFERSCALE_E_IO ? st : INFERSCALE_OK;
}

/* ---- What was set aside -------------------------------------------------------------------------------------------------- */

typedef struct lost_walk {
    const is_fs *fs;
    const char *folder;
    unsigned depth;
    bool remove;
    is_status (*each)(void *ctx, const char *path, uint64_t bytes);
    void *ctx;
} lost_walk;

/* lost-N, its vault, and the vault's folders: a deeper one is not ours. */
static is_status walk_entry(void *ctx, const char *name, bool is_dir)
{
    const lost_walk *w = ctx;
    char path[IS_VAULT_PATH_BYTES];
    lost_walk inner = *w;
    is_stat s;

    if (w->depth == 0 && (!is_dir || strncmp(name, IS_LOST_FOLDER, sizeof IS_LOST_FOLDER - 1))) return INFERSCALE_OK;
    is_inside(w->folder, name, path);
    if (is_dir) {
        if (w->depth == 3) return INFERSCALE_OK;
        inner.folder = path;
        inner.depth++;
        IS_TRY(w->fs->list(w->fs, path, walk_entry, &inner));
        if (w->remove && w->fs->unlink(w->fs, path) != INFERSCALE_OK) is_log(IS_LOG_WARN, "%s", is_error());
        return INFERSCALE_OK;
    }
    IS_TRY(w->fs->stat(w->fs, path, &s));
    return w->each(w->ctx, path, s.is_regular ? s.bytes : 0);
}

is_status is_lost_walk(const is_fs *fs, const char *home, bool remove,
                       is_status (*each)(void *ctx, const char *path, uint64_t bytes), void *ctx)
{
    lost_walk w = { .fs = fs, .folder = home, .remove = remove, .each = each, .ctx = ctx };

    return fs->list(fs, home, walk_entry, &w);
}

/* ---- Opening ------------------------------------------------------------------------------------------------------------- */

static is_status tell_lost(const inferscale *is, const is_traces *t)
{
    if (t->restoring)
        return is_fail(INFERSCALE_E_CORRUPT, "a restore into %s was interrupted, and there is no memory yet; run `inferscale restore DIR` "
                       "again", is->home);
    return is_fail(INFERSCALE_E_CORRUPT, "the memory in %s has lost its bank: %s is there, and bank.sqlite is missing, empty or no "
                   "database. An empty memory would hide that. `inferscale restore DIR` puts a backup in its place; --start-empty "
                   "(start_empty) begins a new memory and keeps what is left in %s/" IS_LOST_FOLDER "N", is->home, t->first, is->home);
}

static is_status open_at(inferscale *is, const char *path, bool *start)
{
    const is_fs *fs = is_fs_default();
    is_traces t;
    bool lost = false;
    is_status st;

    IS_TRY(is_traces_look(fs, is->home, &t));
    if (!t.any && is->read_only && !fs->exists(fs, path))
        return is_fail(INFERSCALE_E_NOTFOUND, "there is no store in %s; remember something first, or give another --home", is->home);
    st = is_room_open_bank(is, path, t.any, &lost);
    if (lost) st = tell_lost(is, &t);
    *start = *start && t.any && st == INFERSCALE_E_CORRUPT;
    if (st != INFERSCALE_OK) return st;
    st = is_bank_settle_home(is->bank, is->home);
    *start = st == INFERSCALE_E_FOREIGN;
    return st;
}

is_status is_lost_open_bank(inferscale *is, bool start_empty)
{
    char *path = is_path_join(is->home, "bank.sqlite");
    bool start = start_empty;
    is_status st = path ? open_at(is, path, &start) : is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");

    if (start_empty && st != INFERSCALE_OK && start && !is->read_only) {
        is_bank_close(is->bank);
        is->bank = NULL;
        st = set_all_aside(is_fs_default(), is->home);
        if (st == INFERSCALE_OK) st = is_room_open_bank(is, path, false, &start);
        if (st == INFERSCALE_OK) st = is_bank_settle_home(is->bank, is->home);
    }
    is_free(path);
    return st;
}
