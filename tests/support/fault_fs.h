/* fault_fs.h - a filesystem that fails on purpose: an is_fs over is_fs_posix() that, at the nth write, sync, rename or read,
 * refuses, tears or garbles it. Counts what it saw, so that a torture loop runs n = 1, 2, ... until nothing was hit:
 *
 *   for (unsigned n = 1;; n++) {
 *       fault_fs *ff = fault_fs_new(FAULT_WRITE, FAULT_ENOSPC, n);
 *       ... use fault_fs_fs(ff) ...
 *       bool hit = fault_fs_hit(ff);
 *       fault_fs_free(ff);
 *       if (!hit) break;
 *   }
 */
#ifndef TESTS_FAULT_FS_H
#define TESTS_FAULT_FS_H

#include <stdbool.h>

#include "base/file.h"
#include "support/fault_clock.h"
#include "support/fault_disk.h"

enum fault_kind {
    FAULT_ENOSPC,       /* refused with E_FULL, nothing is done */
    FAULT_EIO,          /* refused with E_IO, nothing is done */
    FAULT_TEAR,         /* write: the first half arrives, then E_IO (as at power loss, seen by the program) */
    FAULT_TEAR_SILENT,  /* write: the first half arrives and success is reported; other operations: skipped, success reported */
    FAULT_GARBLE        /* write and read: one byte in the middle is flipped, success is reported; others: as TEAR_SILENT */
};

typedef struct fault_fs fault_fs;

/* Fails the nth operation of that sort (1 = the first; 0 = none, only counts). Aborts the test when memory is out. */
fault_fs *fault_fs_new(enum fault_op op, enum fault_kind kind, unsigned nth);
/* On a clock and a disk (may be NULL) that it shares with SQLite: fault_vfs.h. With a disk, other paths pass through. */
fault_fs *fault_fs_on(fault_clock *clock, fault_disk *disk);
void fault_fs_free(fault_fs *f);           /* all its files must be closed */
void fault_fs_sticky(fault_fs *f);         /* every operation of that sort from the nth on fails, as on a full disk */
const is_fs *fault_fs_fs(fault_fs *f);     /* valid until fault_fs_free */
bool fault_fs_hit(const fault_fs *f);      /* was the fault injected? */
unsigned fault_fs_count(const fault_fs *f, enum fault_op op); /* operations seen */
int fault_fs_open_files(const fault_fs *f); /* opened and not closed: 0 when nothing leaks */

#endif
