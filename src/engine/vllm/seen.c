/* seen.c - which prompts' beginnings were sent before: HOME/vllm/seen, shared by the processes of a store.
 *
 * How many tokens of a prompt vLLM had ready is in its stream's end, not how many of these were in its cache and how many were injected. Where
 * the prompt's salt is new there was nothing in the cache, and the plan's counts are vLLM's; else the connector is asked. A word of
 * 8 bytes a place: hashes of salts, which are keyed hashes themselves. One that was written over by another, or by nobody's fault is
 * there though vLLM was started anew, costs a wrong count or a question more, nothing else. */
#include "engine/vllm/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 1 << 16 };

is_status vllm_seen_open(vllm *e)
{
    char *path = is_path_join(e->dir, "seen");

    e->seen = -1;
    if (!path) return vllm_no_memory();
    e->seen = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    is_free(path);
    return e->seen >= 0 ? INFERSCALE_OK : is_fail_errno("cannot open the file \"seen\" in %s; the folder must be writable", e->dir);
}

void vllm_seen_close(vllm *e)
{
    if (e->seen >= 0) close(e->seen);
    e->seen = -1;
}

bool vllm_seen(vllm *e, const uint8_t salt[IS_HASH_BYTES], uint32_t begin)
{
    uint8_t key[IS_HASH_BYTES + sizeof begin];
    uint64_t word, there = 0;
    off_t at;
    ssize_t got;

    memcpy(key, salt, IS_HASH_BYTES);
    memcpy(key + IS_HASH_BYTES, &begin, sizeof begin);
    word = is_checksum(key, sizeof key) | 1; /* an empty place is 0 */
    at = (off_t)((word >> 32) % PLACES * sizeof word);
    got = pread(e->seen, &there, sizeof there, at);
    if (got == (ssize_t)sizeof there && there == word) return true;
    if (got >= 0 && pwrite(e->seen, &word, sizeof word, at) == (ssize_t)sizeof word) return false;
    if (__atomic_exchange_n(&e->seen_failed, 1, __ATOMIC_RELAXED) == 0)
        is_log(IS_LOG_WARN, "%s/seen cannot be used (%s); vLLM is asked about every answer what it had", e->dir, strerror(errno));
    return true;
}
