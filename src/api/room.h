/* room.h - a store on a full disk: what can be read is read, and forgetting gets the space it needs.
 *
 * A file of its own (HOME/reserve) holds some space back while there is plenty. When there is none, it is given up: SQLite can then
 * make the file it needs to open a bank, and forgetting can write its transaction. It is made again at the next opening with space. */
#ifndef IS_API_ROOM_H
#define IS_API_ROOM_H

#include "api/handle.h"

#define IS_RESERVE_NAME "reserve"

/* Opens the bank as the handle asks (existing, lost: is_bank_open_existing). On a full disk it gives the reserve up and tries again, then
 * opens it for reading only, as on a read-only filesystem: the handle is read-only from then on, and its notice says why. */
is_status is_room_open_bank(inferscale *is, const char *path, bool existing, bool *lost);
/* E_READONLY for a store that is open for reading only: why it is, if it was to be written. what: "remember". */
is_status is_room_refuse(const inferscale *is, const char *what);
/* Makes the reserve if it is missing and there is room. Never fails: without it things are as they were before. */
void is_room_reserve(inferscale *is);
/* Gives the reserve up. Was there one? */
bool is_room_release(inferscale *is);
/* A full disk refused to forget these (ids NULL: all of the partition): gives the reserve up, and removes the KV files that are to go in
 * any case, which needs no space. true = something was freed, try again. */
bool is_room_make(inferscale *is, const is_partition *p, const int64_t *ids, size_t n);

/* How the store is now, for who watches it from a thread of its own. OK, or why it cannot be used so; reading may take as long as the
 * whole bank where a statement has found damage. Writing is tried, with a file that goes again: no other test knows quotas, a medium that
 * turned read-only and a disk that lies about its space. A store that is open for reading only is not written to: OK. */
typedef struct is_room_state {
    is_status read, write;
    char why_read[256], why_write[256]; /* "" = OK */
} is_room_state;
void is_room_look(inferscale *is, is_room_state *out);

#endif
