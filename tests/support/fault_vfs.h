/* fault_vfs.h - SQLite on a clock (fault_clock.h) and a disk (fault_disk.h). While it is installed it is SQLite's default VFS, so
 * that every connection opened meanwhile goes through it, the bank's too; fault_fs_on does the same for all other files, so that
 *
 *   fault_clock *clock = fault_clock_new();
 *   fault_disk *disk = fault_disk_new(root);                // NULL: only the clock
 *   fault_fs *fs = fault_fs_on(clock, disk);
 *   fault_vfs_install(clock, disk);
 *   is_fs_set_default(fault_fs_fs(fs));
 *   ... inferscale_open(...), all calls ...
 *   is_fs_set_default(NULL);
 *   fault_vfs_remove();
 *
 * has the whole store behind the faults. With a disk only what lies under its root is touched; other files, as those that a check
 * opens meanwhile, pass through. Real syncs are left out everywhere while it is installed: the machine stays on.
 *
 * Refused operations: EIO comes out as the SQLITE_IOERR_... of the operation, ENOSPC as SQLITE_FULL where SQLite has it so. */
#ifndef TESTS_FAULT_VFS_H
#define TESTS_FAULT_VFS_H

#include "support/fault_clock.h"
#include "support/fault_disk.h"

void fault_vfs_install(fault_clock *clock, fault_disk *disk /* may be NULL */);
/* What is opened from now on is on these; what is open stays on its own. clock NULL: nothing is touched. */
void fault_vfs_use(fault_clock *clock, fault_disk *disk);
void fault_vfs_remove(void); /* connections that were opened meanwhile must be closed */

#endif
