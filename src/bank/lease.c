/* lease.c - leases as file locks. Why it is safe, without a lock around lock and epoch: a reader locks the file of the epoch it
 * read, then reads the epoch again. If it is the same, whoever raises it later finds the lock; if not, the reader starts over. */
#include "bank/lease.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { TRIES = 100, NAMES_TRIES = 2000, POLL_US = 1000, PATH_BYTES = 4096 };

struct is_lease {
    const is_fs *fs;
    is_file *file;
    int64_t epoch;
};

static is_status folder_of(const is_bank *b, char out[PATH_BYTES])
{
    const char *path = is_bank_path(b), *slash = strrchr(path, '/');
    int n = slash ? snprintf(out, PATH_BYTES, "%.*s/leases", (int)(slash - path), path) : snprintf(out, PATH_BYTES, "leases");

    if (n > 0 && n < PATH_BYTES - 64) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "the store's folder has too long a name; choose another --home");
}

/* The file of an epoch, made if it is not there. */
static is_status open_file(const is_fs *fs, const char *folder, const char *path, is_file **out)
{
    is_status st = INFERSCALE_E_NOTFOUND;

    for (int i = 0; i < TRIES && st == INFERSCALE_E_NOTFOUND; i++) {
        st = fs->open(fs, path, IS_OPEN_RDWR, out);
        if (st != INFERSCALE_E_NOTFOUND) return st;
        st = fs->open(fs, path, IS_OPEN_CREATE_NEW, out);
        if (st == INFERSCALE_E_NOTFOUND) { /* no folder yet */
            IS_TRY(fs->mkdirs(fs, folder));
        } else if (st != INFERSCALE_OK && fs->exists(fs, path)) {
            st = INFERSCALE_E_NOTFOUND; /* another was faster: open his */
        }
    }
    return st;
}

void is_lease_drop(is_lease *l)
{
    if (!l) return;
    l->fs->close(l->fs, l->file); /* and with it the lock */
    is_free(l);
}

/* One try: a lease on the epoch that p has. E_BUSY: the file is being removed, so the epoch is an old one. */
static is_status try_lease(is_bank *b, const is_partition *p, bool writing, is_lease **out)
{
    const is_fs *fs = is_fs_default();
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    is_lease *l;
    is_status st;

    *out = NULL;
    IS_TRY(folder_of(b, folder));
    snprintf(path, sizeof path, "%s/%lld.%lld%s", folder, (long long)p->id, (long long)p->epoch, writing ? ".writing" : "");
    l = is_calloc(1, sizeof *l);
    if (!l) return is_fail(INFERSCALE_E_NOMEM, "no memory for a lease; free some and try again");
    l->fs = fs;
    l->epoch = p->epoch;
    st = open_file(fs, folder, path, &l->file);
    if (st != INFERSCALE_OK) {
        is_free(l);
        return st;
    }
    st = fs->lock(fs, l->file, false);
    if (st == INFERSCALE_OK) *out = l;
    else is_lease_drop(l);
    return st;
}

static bool cannot_have_any(is_status st)
{
    return st == INFERSCALE_E_READONLY || st == INFERSCALE_E_DENIED || st == INFERSCALE_E_FULL;
}

static is_status take(is_bank *watch, is_partition *p, bool writing, is_lease **lease)
{
    static atomic_bool said;

    IS_TRY(is_bank_partition_refresh(watch, p));
    for (int i = 0; i < TRIES; i++) {
        is_lease *fresh = NULL;
        int64_t epoch = p->epoch;
        is_status st;

        if (*lease && (*lease)->epoch == epoch) return INFERSCALE_OK;
        st = try_lease(watch, p, writing, &fresh);
        if (cannot_have_any(st)) {
            if (!atomic_exchange(&said, true))
                is_log(IS_LOG_WARN, "no leases can be taken (%s): who forgets does not wait for the questions of this process",
                       is_error());
            is_lease_drop(*lease);
            *lease = NULL;
            return INFERSCALE_OK;
        }
        if (st != INFERSCALE_OK && st != INFERSCALE_E_BUSY) return st;
        st = is_bank_partition_refresh(watch, p);
        if (st == INFERSCALE_OK && fresh && p->epoch == epoch) {
            is_lease_drop(*lease);
            *lease = fresh;
            return INFERSCALE_OK;
        }
        is_lease_drop(fresh);
        if (st != INFERSCALE_OK) return st;
    }
    return is_fail(INFERSCALE_E_BUSY, "the memory changes faster than it can be read; ask again");
}

is_status is_lease_take(is_bank *watch, is_partition *p, is_lease **lease)
{
    return take(watch, p, false, lease);
}

is_status is_lease_take_writing(is_bank *watch, is_partition *p, is_lease **lease)
{
    return take(watch, p, true, lease);
}

is_status is_lease_take_names(is_bank *b, const is_partition *p, bool alone, is_lease **lease)
{
    const is_fs *fs = is_fs_default();
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    is_lease *l;
    is_status st;

    *lease = NULL;
    IS_TRY(folder_of(b, folder));
    snprintf(path, sizeof path, "%s/names-%lld", folder, (long long)p->id);
    l = is_calloc(1, sizeof *l);
    if (!l) return is_fail(INFERSCALE_E_NOMEM, "no memory for a lease; free some and try again");
    l->fs = fs;
    st = open_file(fs, folder, path, &l->file);
    if (st != INFERSCALE_OK) {
        is_free(l);
        return cannot_have_any(st) ? INFERSCALE_OK : st;
    }
    st = fs->lock(fs, l->file, alone);
    for (int i = 0; i < NAMES_TRIES && st == INFERSCALE_E_BUSY; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = POLL_US * 1000 }, NULL);
        st = fs->lock(fs, l->file, alone);
    }
    if (st == INFERSCALE_OK) *lease = l;
    else is_lease_drop(l);
    return st == INFERSCALE_E_BUSY ? is_fail(INFERSCALE_E_STALE, "other processes store this memory's rows; try again later") : st;
}

/* ---- Looking ------------------------------------------------------------------------------------------------------------- */

typedef struct looking {
    const is_fs *fs;
    const char *folder;
    int64_t partition;
    bool found;
} looking;

/* Is this a file of the partition's writers, and held? */
static is_status look_at_one(void *ctx, const char *name, bool is_dir)
{
    looking *l = ctx;
    char path[PATH_BYTES + 64], *end = NULL;
    long long partition = strtoll(name, &end, 10);
    is_file *f = NULL;
    is_status st;

    if (is_dir || l->found || *end != '.' || partition != l->partition) return INFERSCALE_OK;
    (void)strtoll(end + 1, &end, 10);
    if (strcmp(end, ".writing") != 0) return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.60s", l->folder, name);
    st = l->fs->open(l->fs, path, IS_OPEN_RDWR, &f);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    if (st != INFERSCALE_OK) return st;
    st = l->fs->lock(l->fs, f, true);
    l->fs->close(l->fs, f); /* and with it our lock: a writer that comes in between tries again */
    l->found = st == INFERSCALE_E_BUSY;
    return l->found ? INFERSCALE_OK : st;
}

is_status is_lease_is_writing(is_bank *b, int64_t partition, bool *is_writing)
{
    const is_fs *fs = is_fs_default();
    char folder[PATH_BYTES];
    looking l = { .fs = fs, .folder = folder, .partition = partition };

    *is_writing = false;
    IS_TRY(folder_of(b, folder));
    if (fs->exists(fs, folder)) IS_TRY(fs->list(fs, folder, look_at_one, &l));
    *is_writing = l.found;
    return INFERSCALE_OK;
}

/* ---- Waiting ------------------------------------------------------------------------------------------------------------- */

typedef struct waiting {
    const is_fs *fs;
    const char *folder;
    const is_partition *p;
    size_t n_held;
} waiting;

/* Removes the file of an older epoch if nobody holds it. */
static is_status clear_one(void *ctx, const char *name, bool is_dir)
{
    waiting *w = ctx;
    char path[PATH_BYTES + 64], *end = NULL;
    long long partition = strtoll(name, &end, 10), epoch;
    is_file *f = NULL;
    is_status st;

    if (is_dir || *end != '.' || partition != w->p->id) return INFERSCALE_OK;
    epoch = strtoll(end + 1, &end, 10);
    if (*end && strcmp(end, ".writing") != 0) return INFERSCALE_OK;
    if (epoch >= w->p->epoch) return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.60s", w->folder, name);
    st = w->fs->open(w->fs, path, IS_OPEN_RDWR, &f);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* another who waits was faster */
    if (st != INFERSCALE_OK) return st;
    st = w->fs->lock(w->fs, f, true);
    if (st == INFERSCALE_OK) (void)w->fs->unlink(w->fs, path);
    w->fs->close(w->fs, f);
    if (st != INFERSCALE_E_BUSY) return st;
    w->n_held++;
    return INFERSCALE_OK;
}

is_status is_lease_wait(is_bank *b, const is_partition *p, uint32_t wait_ms, size_t *n_pending)
{
    const is_fs *fs = is_fs_default();
    char folder[PATH_BYTES];
    waiting w = { .fs = fs, .folder = folder, .p = p };
    const double until = is_now_ms() + wait_ms;

    *n_pending = 0;
    IS_TRY(folder_of(b, folder));
    for (;;) {
        struct timespec pause = { 0, POLL_US * 1000 };
        is_status st;

        w.n_held = 0;
        st = fs->exists(fs, folder) ? fs->list(fs, folder, clear_one, &w) : INFERSCALE_OK;
        if (st != INFERSCALE_OK || w.n_held == 0) return st;
        if (is_now_ms() >= until) break;
        nanosleep(&pause, NULL);
    }
    *n_pending = w.n_held;
    return is_fail(INFERSCALE_E_BUSY, "questions that may use what was changed or forgotten have not ended in %u ms; they end before "
                   "their next token", wait_ms);
}
