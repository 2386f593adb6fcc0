/* commit.c - a result appears under its name whole or not at all. */
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "tools/tools.h"

char *tool_temp_name(const char *out)
{
    is_buf b = IS_BUF_INIT;

    is_buf_fmt(&b, "%s.%ld.tmp", out, (long)getpid());
    return is_buf_take(&b);
}

static is_status sync_file(const is_fs *fs, const char *path)
{
    is_file *f = NULL;
    is_status st = fs->open(fs, path, IS_OPEN_RDWR, &f);

    if (st != INFERSCALE_OK) return st;
    st = fs->sync(fs, f);
    fs->close(fs, f);
    return st;
}

is_status tool_commit(const char *temp, const char *out)
{
    const is_fs *fs = is_fs_posix();
    const char *slash = strrchr(out, '/');
    char *dir = slash ? is_strndup(out, slash == out ? 1 : (size_t)(slash - out)) : is_strdup(".");
    is_status st = dir ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory; free some memory");

    if (st == INFERSCALE_OK) st = sync_file(fs, temp);
    if (st == INFERSCALE_OK) st = fs->rename(fs, temp, out);
    if (st != INFERSCALE_OK) unlink(temp);
    else st = fs->sync_dir(fs, dir);
    is_free(dir);
    return st;
}
