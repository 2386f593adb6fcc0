/* vault.h - the files of segments, and a RAM tier with a byte budget before them.
 *
 * Files: DIR/ab/abcd....seg (hex of the name), 0600 in 0700 folders, written to DIR/tmp, synced, renamed, folder synced. A
 * torn, missing or foreign file reads as absent (logged, counted): the fact is served as text and encoded again; never wrong
 * data. Losing the vault costs time, not memory. Thread safe. */
#ifndef IS_KV_VAULT_H
#define IS_KV_VAULT_H

#include "kv/segment.h"

typedef struct is_vault is_vault;

typedef struct is_vault_stats {
    uint64_t ram_bytes, ram_budget, ram_hits, file_reads, misses, bad_files, evictions;
    uint64_t head_bytes, head_hits, head_reads; /* heads alone (get_bare) */
    uint64_t n_files, file_bytes; /* only filled by is_vault_scan */
} is_vault_stats;

is_status is_vault_open(const is_fs *fs, const char *dir, uint64_t ram_budget, bool read_only, is_vault **out);
void is_vault_close(is_vault *v);

/* Stores a segment durably under its name (existing: kept, OK) and in the RAM tier. */
is_status is_vault_put(is_vault *v, is_segment *s);
/* As put, but a file that is there is replaced, and the old one's bytes overwritten. */
is_status is_vault_replace(is_vault *v, is_segment *s);
/* A new reference to the segment, from RAM or file. E_NOTFOUND if absent or unusable (then the bad file is set aside as
 * NAME.bad). Any other failure (E_NOMEM, E_IO, E_DENIED) says nothing of the file, which may be well: nothing is to be removed for it.
 * want_fingerprint (may be NULL) and the name inside the file must match. */
is_status is_vault_get(is_vault *v, const uint8_t name[IS_HASH_BYTES], const uint8_t *want_fingerprint, is_segment **out);
/* The same without its rows, for a plan that is carried out elsewhere: the file's head is read, and kept until the file changes. The RAM
 * tier is not asked: whether the file is there is what counts. Damage behind the head is not seen. */
is_status is_vault_get_bare(is_vault *v, const uint8_t name[IS_HASH_BYTES], const uint8_t *want_fingerprint, is_segment **out);
/* Somebody says that this segment cannot be used: its file is read and all of it verified, whatever is in memory. E_NOTFOUND as get. */
is_status is_vault_doubt(is_vault *v, const uint8_t name[IS_HASH_BYTES]);
bool is_vault_has(is_vault *v, const uint8_t name[IS_HASH_BYTES]); /* in RAM or as a file; does not read it */
/* Out of RAM, file renamed out of the namespace, overwritten, synced, unlinked. Absent is fine. */
is_status is_vault_remove(is_vault *v, const uint8_t name[IS_HASH_BYTES]);
/* The first half of that for many: renamed out of the namespace and out of RAM, so that nobody finds them any more. The second half,
 * and the first for those not hidden yet: overwritten and unlinked. The names are sorted in place. */
is_status is_vault_hide(is_vault *v, uint8_t (*names)[IS_HASH_BYTES], size_t n);
is_status is_vault_remove_all(is_vault *v, uint8_t (*names)[IS_HASH_BYTES], size_t n);
void is_vault_drop_ram(is_vault *v);                   /* benchmarks: empty the RAM tier */
is_status is_vault_drop_cache(is_vault *v, const uint8_t name[IS_HASH_BYTES]); /* benchmarks: OS pages too */
void is_vault_keep_no_rows(is_vault *v);               /* from now on no rows are kept in RAM: they are used elsewhere */
void is_vault_get_stats(is_vault *v, is_vault_stats *out);
is_status is_vault_scan(is_vault *v, is_vault_stats *out); /* counts files and bytes */

/* For those who look after the files (kv/vault_files.h). */
const is_fs *is_vault_fs(const is_vault *v);
const char *is_vault_dir(const is_vault *v);
/* Is this entry of DIR/tmp left over by a process that is gone (or did nothing for an hour)? */
bool is_vault_left_over(const char *name);
/* A file that is being overwritten to go: its process lives and took it out of the namespace a moment ago. Overwriting it too does no
 * harm, but it is no finding. */
bool is_vault_at_work(const char *name);

#endif
