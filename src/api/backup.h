/* backup.h - what a backup looks like: a folder with bank.sqlite and vault/, as a store has them, and a manifest that is written last
 * and names every file with its size and checksum. docs/formats.md describes it. */
#ifndef IS_API_BACKUP_H
#define IS_API_BACKUP_H

#include "api/maintain.h"
#include "base/buf.h"

#define IS_BACKUP_MANIFEST "backup.txt"
#define IS_BACKUP_MARK "backup.part"    /* there while a backup is made */
#define IS_RESTORE_MARK "restore.part"  /* there while a store is restored */

/* One KV file in the manifest's order. sum: XXH3-64 of its bytes; has_sum = false for a linked one, whose bytes were not read. */
typedef struct is_backup_file {
    uint8_t name[IS_HASH_BYTES];
    uint64_t bytes, sum;
    bool has_sum;
} is_backup_file;

typedef struct is_manifest {
    int64_t created;
    uint64_t bank_bytes;
    uint8_t bank_sum[IS_HASH_BYTES];   /* BLAKE2b-256 of bank.sqlite */
    is_backup_file *files;             /* is_free'd */
    size_t n;
} is_manifest;

void is_manifest_free(is_manifest *m);
is_status is_manifest_write(const is_fs *fs, const char *dir, const is_manifest *m);
/* E_NOTFOUND (no whole backup), E_CORRUPT (does not match its own checksum), E_FOREIGN (a newer form). */
is_status is_manifest_read(const is_fs *fs, const char *dir, is_manifest *out);

/* BLAKE2b-256 of a file; with to, its bytes are also copied there (a new file, synced). */
is_status is_file_sum(const is_fs *fs, const char *path, const char *to, uint8_t sum[IS_HASH_BYTES], uint64_t *bytes);
/* Is the folder free to be filled: not there, empty, or with nothing but what an interrupted attempt (mark) left, which is removed? Made and
 * marked when it returns OK. keep: a name whose presence means that it is whole. E_INVALID with the reason otherwise. */
is_status is_folder_claim(const is_fs *fs, const char *dir, const char *mark, const char *whole);
/* DIR/NAME into out. */
void is_inside(const char *dir, const char *name, char out[IS_VAULT_PATH_BYTES]);
/* DIR/vault/ab/abcd....seg; folder (may be NULL) receives DIR/vault/ab. */
void is_backup_path(const char *dir, const uint8_t name[IS_HASH_BYTES], char out[IS_VAULT_PATH_BYTES], char *folder);
/* Reads and verifies a KV file: all checksums, its name, its size. *data is is_free'd. E_NOTFOUND, E_CORRUPT, E_FOREIGN, E_IO. */
is_status is_backup_read(const is_fs *fs, const char *path, const uint8_t name[IS_HASH_BYTES], uint8_t **data, size_t *n);
/* A new file of these bytes, synced; its folder is made. */
is_status is_backup_put(const is_fs *fs, const char *dir, const uint8_t name[IS_HASH_BYTES], const void *data, size_t n);
/* Makes the folders' entries durable. */
is_status is_backup_sync(const is_fs *fs, const char *dir);

#endif
