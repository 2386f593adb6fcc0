/* seen.c - which prompts' beginnings were sent before: HOME/vllm/seen, shared by the processes of a store.
 *
 * How many tokens of a prompt vLLM had ready is in its stream's end, not how many of these were in its cache and how many were injected. Where
 * the prompt's salt is new there was nothing in the cache, and the plan's counts are vLLM's; else the connector is asked. A word of
 * 8 bytes a place: hashes of salts, which are keyed hashes themselves. One that was written over by another, or by nobody's fault is
 * there though vLLM was started anew, costs a wrong count or a question more, nothing else. */
#include "engine/vllm/internal.h"

#include <string.h>

#include "base/file.h"

enum { PLACES = 1 << 16 };

is_status vllm_seen_open(vllm *e)
{
    const is_fs *fs = is_fs_default();
    char *path = is_path_join(e->dir, "seen");
    is_status st;

    if (!path) return vllm_no_memory();
    st = fs->open(fs, path, IS_OPEN_CREATE_NEW, &e->seen);
    if (st != INFERSCALE_OK && fs->exists(fs, path)) st = fs->open(fs, path, IS_OPEN_RDWR, &e->seen);
    is_free(path);
    return st;
}

void vllm_seen_close(vllm *e)
{
    if (e->seen) is_fs_default()->close(is_fs_default(), e->seen);
    e->seen = NULL;
}

bool vllm_seen(vllm *e, const uint8_t salt[IS_HASH_BYTES], uint32_t begin)
{
    uint8_t key[IS_HASH_BYTES + sizeof begin];
    const is_fs *fs = is_fs_default();
    uint64_t word, there = 0, at;
    is_status st;

    memcpy(key, salt, IS_HASH_BYTES);
    memcpy(key + IS_HASH_BYTES, &begin, sizeof begin);
    word = is_checksum(key, sizeof key) | 1; /* an empty place is 0 */
    at = (word >> 32) % PLACES * sizeof word;
    st = fs->pread(fs, e->seen, &there, sizeof there, at);
    if (st == INFERSCALE_OK && there == word) return true;
    if (st == INFERSCALE_E_CORRUPT) st = INFERSCALE_OK; /* a short file has no such place yet */
    if (st == INFERSCALE_OK) st = fs->pwrite(fs, e->seen, &word, sizeof word, at);
    if (st == INFERSCALE_OK) return false;
    if (__atomic_exchange_n(&e->seen_failed, 1, __ATOMIC_RELAXED) == 0)
        is_log(IS_LOG_WARN, "%s/seen cannot be used (%s); vLLM is asked about every answer what it had", e->dir, is_error());
    return true;
}
