/* home.h - the file beside a bank that outlives it: HOME/home.id.
 *
 * It holds the home's identity, which the bank holds too, and a bound on the ids that were given. A bank of another home is noticed
 * by the identity. A bank that is older than the folder (a backup that was put back, a log that was deleted) is noticed by the ids:
 * new ones then begin above every id that was ever given here.
 *
 * The bound grows in blocks. A new bound is on disk (synced) before an id of its block is given. The last id is written in place
 * with every write that gives ids, and not synced: it survives the end of a process, and the bound survives a power loss. Every
 * change is made while the bank's write lock is held, so processes never overwrite one another. */
#ifndef IS_BANK_HOME_H
#define IS_BANK_HOME_H

#include "bank/bank.h"
#include "base/file.h"

#define IS_HOME_NAME "home.id"

enum { IS_HOME_ID_BYTES = 16, IS_HOME_BLOCK = 1000 };

typedef struct is_home {
    bool there;                     /* there is such a file */
    bool whole;                     /* and its first part can be believed */
    uint8_t id[IS_HOME_ID_BYTES];
    int64_t below;                  /* every id that was given is below this one */
    int64_t last;                   /* the last id that was given; -1: it cannot be told */
} is_home;

/* A file that is missing or damaged is no failure: see there and whole. E_IO, E_DENIED, E_NOMEM: it cannot be told. */
is_status is_home_read(const is_fs *fs, const char *folder, is_home *out);

/* Holds the bank and the folder's file against each other. A bank that is open for writing gets an identity if it has none, the file is
 * made if it is missing, and ids go on above those that were given. From then on the bank keeps the file. A read-only bank is only
 * compared. E_FOREIGN: the bank is another home's. E_IO, E_FULL, E_BUSY, E_NOMEM. */
is_status is_bank_settle_home(is_bank *b, const char *folder);

/* The identity of the bank in a file that nobody has open (a backup's). *has = false: it has none, as banks of older schemas. */
is_status is_bank_home_id(const char *path, uint8_t id[IS_HOME_ID_BYTES], bool *has);

#endif
