/* room.c - what still works when the disk is full. */
#include "api/room.h"

#include <stdio.h>
#include <string.h>

#include "api/maintain.h"
#include "bank/maintain.h"
#include "base/log.h"
#include "base/mem.h"

enum { RESERVE_BYTES = 512 * 1024, TRY_BYTES = 256 * 1024 };

static char *reserve_path(const inferscale *is)
{
    return is_path_join(is->home, IS_RESERVE_NAME);
}

/* Random bytes: zeros may take no space where files are packed or have holes. */
static is_status write_file(const is_fs *fs, const char *path, size_t n)
{
    uint8_t *bytes = is_malloc(n);
    is_file *f = NULL;
    is_status st = bytes ? fs->open(fs, path, IS_OPEN_CREATE_NEW, &f) : is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu bytes", n);

    if (st == INFERSCALE_OK) {
        is_random(bytes, n);
        st = fs->pwrite(fs, f, bytes, n, 0);
        fs->close(fs, f);
        if (st != INFERSCALE_OK) (void)fs->unlink(fs, path);
    }
    is_free(bytes);
    return st;
}

void is_room_reserve(inferscale *is)
{
    const is_fs *fs = is_fs_default();
    char *path = is->read_only ? NULL : reserve_path(is);

    if (path && !fs->exists(fs, path) && write_file(fs, path, RESERVE_BYTES) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "no space could be held back for a full disk: %s", is_error());
    is_free(path);
}

bool is_room_release(inferscale *is)
{
    const is_fs *fs = is_fs_default();
    char *path = reserve_path(is);
    bool freed = path && fs->exists(fs, path) && fs->unlink(fs, path) == INFERSCALE_OK;

    if (freed) is_log(IS_LOG_WARN, "the disk is full: the space that was held back is used");
    is_free(path);
    return freed;
}

static is_status open_bank(inferscale *is, const char *path, bool read_only, bool existing, bool *lost)
{
    *lost = false;
    return existing ? is_bank_open_existing(path, read_only, lost, &is->bank) : is_bank_open(path, read_only, &is->bank);
}

/* What cannot be opened for writing is opened for reading, and says so. */
static is_status open_to_read(inferscale *is, const char *path, bool existing, bool *lost, is_status st, const char *notice)
{
    char why[1024];

    snprintf(why, sizeof why, "%s", is_error());
    if (open_bank(is, path, true, existing, lost) != INFERSCALE_OK) return is_fail(st, "%s", why);
    is->notice = is_strdup(notice);
    if (!is->notice) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
    is->read_only = true;
    is_log(IS_LOG_WARN, "%s", is->notice);
    return INFERSCALE_OK;
}

is_status is_room_open_bank(inferscale *is, const char *path, bool existing, bool *lost)
{
    is_status st = open_bank(is, path, is->read_only, existing, lost);

    if (is->read_only) return st;
    if (st == INFERSCALE_E_READONLY)
        return open_to_read(is, path, existing, lost, st, "the store cannot be written here (a read-only filesystem), so it is open for "
                            "reading only; open it again where it can be written");
    if (st == INFERSCALE_E_FULL && is_room_release(is)) st = open_bank(is, path, false, existing, lost);
    if (st != INFERSCALE_E_FULL) return st;
    return open_to_read(is, path, existing, lost, st, "the disk is full, so the store is open for reading only; free some space and open it "
                        "again");
}

is_status is_room_refuse(const inferscale *is, const char *what)
{
    if (is->notice) return is_fail(INFERSCALE_E_READONLY, "%s, to %s", is->notice, what);
    return is_fail(INFERSCALE_E_READONLY, "the store was opened read-only; open it for writing to %s", what);
}

const char *inferscale_notice(const inferscale *is)
{
    return is && is->notice ? is->notice : "";
}

bool is_room_make(inferscale *is, const is_partition *p, const int64_t *ids, size_t n)
{
    bool freed = is_room_release(is);
    is_names names = { 0 };
    size_t removed = 0;

    if (is_bank_dependents(is->bank, p->id, ids, n, &names) != INFERSCALE_OK) return freed;
    for (size_t i = 0; i < names.n; i++) {
        if (!is_vault_has(is->vault, names.names[i])) continue;
        if (is_vault_remove(is->vault, names.names[i]) == INFERSCALE_OK) removed++;
    }
    is_names_free(&names);
    if (removed) is_log(IS_LOG_WARN, "the disk is full: %zu KV files of what is forgotten were removed first", removed);
    return freed || removed;
}

/* ---- Looking ------------------------------------------------------------------------------------------------------------- */

static is_status try_to_write(const inferscale *is)
{
    const is_fs *fs = is_fs_default();
    char *path = is_path_join(is->home, "probe");
    is_status st;

    if (!path) return is_fail(INFERSCALE_E_NOMEM, "out of memory while looking at the disk");
    if (fs->exists(fs, path)) (void)fs->unlink(fs, path); /* of a process that ended just then */
    st = write_file(fs, path, TRY_BYTES);
    if (st == INFERSCALE_OK) st = fs->unlink(fs, path);
    is_free(path);
    return st;
}

static void say(is_status st, is_status *to, char why[256])
{
    *to = st;
    snprintf(why, 256, "%s", st == INFERSCALE_OK ? "" : is_error());
}

void is_room_look(inferscale *is, is_room_state *out)
{
    say(is_bank_probe(is->bank), &out->read, out->why_read);
    say(is->read_only ? INFERSCALE_OK : try_to_write(is), &out->write, out->why_write);
    if (out->write != INFERSCALE_E_FULL) return;
    snprintf(out->why_write, sizeof out->why_write,
             "the disk of %.120s is full: nothing can be remembered until some space is free; what is remembered is served", is->home);
}
