/* lost.h - a memory whose bank is gone is not an empty memory.
 *
 * What else lies in the home folder says that a memory was here: the file beside the bank (bank/home.h), the vault, leases, what is
 * held back for a full disk, a log without its database. All of these come after the bank's first commit, so a crash while a new
 * memory is made never leaves them without it. They are looked at before the bank is: another process may be making both. */
#ifndef IS_API_LOST_H
#define IS_API_LOST_H

#include "api/handle.h"

#define IS_LOST_FOLDER "lost-" /* and a number: what a bank that is gone left, set aside */

typedef struct is_traces {
    bool any;          /* a memory was here */
    bool restoring;    /* a restore was interrupted: there is no memory yet */
    bool kv;           /* the vault has files of KV */
    char first[64];    /* one of the traces, by its name in the folder */
} is_traces;

/* E_IO, E_DENIED: it cannot be told. */
is_status is_traces_look(const is_fs *fs, const char *home, is_traces *out);
/* Opens the handle's bank where it must be if there are traces, and holds it against them. start_empty: what is left of a bank that is
 * lost, damaged or another memory's is set aside with its vault, and a new memory begins. */
is_status is_lost_open_bank(inferscale *is, bool start_empty);
/* Calls each() for every file in the folder's lost-N; remove: folders that are empty afterwards go. */
is_status is_lost_walk(const is_fs *fs, const char *home, bool remove,
                       is_status (*each)(void *ctx, const char *path, uint64_t bytes), void *ctx);
/* Are there traces of a memory, and its bank is lost or damaged? An interrupted restore is not that. */
is_status is_lost_is(const is_fs *fs, const char *home, bool *lost);
/* Moves bank, log and (with_vault) vault of the folder to the next free HOME/lost-N. */
is_status is_lost_set_aside(const is_fs *fs, const char *home, bool with_vault);

#endif
