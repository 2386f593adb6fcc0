/* fault_disk.h - a disk whose power can go. Everything that is done under its root goes to the real files at once, so that the
 * program, other connections and memory maps see it; beside that the disk remembers what has been synced and what has not: the
 * bytes of each file as of its last sync with the writes since, and the names that have not been made durable. fault_disk_image then
 * writes, into another folder, what would be found after the power went now.
 *
 * What is held to be durable: a file's bytes after its sync; a name (create, rename, unlink, new folder) after the sync of its
 * folder, or for SQLite's files as SQLite does it (a sync of the file enters its name; an unlink that asks for it). Names that wait
 * are kept in their order up to some point, as a journalling filesystem does; bytes that wait may arrive in any order, in part (512-byte
 * sectors) or spoilt. SQLite's -shm file is not on the disk: it is made anew. Thread safe. */
#ifndef TESTS_FAULT_DISK_H
#define TESTS_FAULT_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of the pending writes: none arrives; all do; each of their sectors may or may not; each arrives whole, not at all, or
 * with sectors of noise; each as one of these. */
enum fault_fate { FATE_DROP, FATE_KEEP, FATE_TEAR, FATE_GARBLE, FATE_MIX, FATES };
const char *fault_fate_name(enum fault_fate fate);

typedef struct fault_disk fault_disk;
typedef struct fault_inode fault_inode;

/* root: an absolute path without links; what is there already is durable. Aborts when memory is out. */
fault_disk *fault_disk_new(const char *root);
void fault_disk_free(fault_disk *d);
bool fault_disk_has(const fault_disk *d, const char *path); /* is it under the root? */
/* Writes what would be left to the folder `to` (made; must not exist, not under the root). seed: which of the possible. */
void fault_disk_image(fault_disk *d, const char *to, enum fault_fate fate, uint64_t seed);
size_t fault_disk_pending(fault_disk *d);            /* writes and names that wait */

/* Called whenever something new waits, or is about to be made durable: the moments at which power loss differs. */
typedef void (*fault_disk_point_fn)(void *ctx, fault_disk *d);
void fault_disk_on_point(fault_disk *d, fault_disk_point_fn fn, void *ctx); /* NULL = none */
void fault_disk_point(fault_disk *d);                /* by the layers, before a sync */

/* For the layers: told after the real operation succeeded. An inode is found by its path at open, and stays with the open file. */
fault_inode *fault_disk_open(fault_disk *d, const char *path, bool created);
void fault_disk_write(fault_disk *d, fault_inode *f, const void *p, size_t n, uint64_t at);
void fault_disk_truncate(fault_disk *d, fault_inode *f, uint64_t size);
void fault_disk_sync(fault_disk *d, fault_inode *f, bool and_name);
void fault_disk_mkdirs(fault_disk *d, const char *path);
void fault_disk_rename(fault_disk *d, const char *from, const char *to);
void fault_disk_link(fault_disk *d, const char *from, const char *to);
void fault_disk_unlink(fault_disk *d, const char *path, bool durable);
void fault_disk_sync_dir(fault_disk *d, const char *path);

#endif
