/* lockfile.c - flock on a file of its own: the lock belongs to the open file, so a killed holder's is gone at once. */
#include "base/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/mem.h"

struct is_lockfile { int fd; };

is_status is_lockfile_try(const char *path, is_lockfile **out)
{
    is_lockfile *l = is_calloc(1, sizeof *l);
    is_status st;

    *out = NULL;
    if (!l) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a lock; free some and try again");
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0) {
        st = is_fail_errno("cannot open the lock %s", path);
        is_free(l);
        return st;
    }
    if (flock(l->fd, LOCK_EX | LOCK_NB) == 0) {
        *out = l;
        return INFERSCALE_OK;
    }
    st = errno == EWOULDBLOCK ? is_fail(INFERSCALE_E_BUSY, "another holds the lock %s; try again when it is done", path)
                              : is_fail_errno("cannot lock %s", path);
    close(l->fd);
    is_free(l);
    return st;
}

void is_lockfile_release(is_lockfile *l)
{
    if (!l) return;
    close(l->fd);
    is_free(l);
}
