/* vault_files.h - the vault's files as they lie on disk, for those who look after them: checking, cleaning, measuring, copying.
 * Nothing here goes through the RAM tier. */
#ifndef IS_KV_VAULT_FILES_H
#define IS_KV_VAULT_FILES_H

#include "kv/vault.h"

enum { IS_VAULT_PATH_BYTES = 4096 };

typedef enum is_vault_kind {
    IS_VAULT_SEGMENT,    /* DIR/ab/abcd....seg */
    IS_VAULT_BAD,        /* .bad: set aside */
    IS_VAULT_MISPLACED,  /* a segment's file where its name does not lead: nobody finds it */
    IS_VAULT_LEFT_OVER,  /* in DIR/tmp, of a process that is gone */
    IS_VAULT_BUSY,       /* in DIR/tmp, being written or removed right now */
    IS_VAULT_FOLDER,     /* DIR itself, DIR/tmp, DIR/ab */
    IS_VAULT_STRAY       /* not ours: never touched */
} is_vault_kind;

typedef struct is_vault_entry {
    is_vault_kind kind;
    uint8_t name[IS_HASH_BYTES]; /* of SEGMENT, BAD and MISPLACED; else zeros */
    const char *path;            /* lives during the call of each() */
    is_stat stat;
} is_vault_entry;

/* Calls each() for everything in the vault's folder; entries that vanish meanwhile are left out. Stops when each() returns
 * non-OK and returns that. A vault that has no folder yet is empty. */
is_status is_vault_walk(is_vault *v, is_status (*each)(void *ctx, const is_vault_entry *e), void *ctx);

/* The file of a segment (it need not be there). */
void is_vault_path(const is_vault *v, const uint8_t name[IS_HASH_BYTES], char out[IS_VAULT_PATH_BYTES]);
/* Reads and verifies the file: all checksums, and that it is this segment's. E_NOTFOUND, E_CORRUPT, E_FOREIGN, E_IO. Leaves it where
 * it is. */
is_status is_vault_verify(is_vault *v, const uint8_t name[IS_HASH_BYTES], is_segment **out);

#endif
