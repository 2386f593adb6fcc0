/* lockfile.h - one holder at a time among all processes, by a file that the kernel lets go of when its holder dies. */
#ifndef IS_BASE_LOCKFILE_H
#define IS_BASE_LOCKFILE_H

#include "base/status.h"

typedef struct is_lockfile is_lockfile;

/* Takes the lock if nobody has it; the file (0600) is made if it is not there, and stays. E_BUSY: another holder, in this process or
 * another. Two handles of one process exclude each other too. */
is_status is_lockfile_try(const char *path, is_lockfile **out);
void is_lockfile_release(is_lockfile *l);   /* NULL is allowed */

#endif
