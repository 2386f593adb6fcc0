/* head_tier.h - the heads of segments' files (bare segments), kept in memory as long as the files stay what they are.
 *
 * Where another process injects the rows, a plan needs of a segment who it is, of which model, and its token ids. A few kilobytes of a file
 * say that. They are read once and kept within a byte budget; every use asks for the file's size, inode and time of change, so that one
 * that is gone, was replaced or written to is noticed. Thread safe; files are touched outside the lock. */
#ifndef IS_KV_HEAD_TIER_H
#define IS_KV_HEAD_TIER_H

#include <pthread.h>

#include "kv/ram_tier.h"

#define IS_HEADS_BUDGET (UINT64_C(16) << 20) /* some thousands of heads */

typedef struct head_tier {
    pthread_mutex_t lock;        /* of what follows */
    ram_tier ram;
    uint64_t n_forgotten, hits, reads;
} head_tier;

void head_tier_init(head_tier *t, uint64_t budget);
void head_tier_free(head_tier *t);
/* The bare segment of a file; a new reference. name: the segment's; salt tells folders apart that may both have it. What is not kept is
 * read, with the errors of is_segment_read; that name and file belong together the caller sees to. */
is_status head_tier_get(head_tier *t, const is_fs *fs, const char *path, const uint8_t name[IS_HASH_BYTES], uint32_t salt, is_segment **out);
/* Nothing of it is kept any more; what it said is overwritten. */
void head_tier_forget(head_tier *t, const uint8_t name[IS_HASH_BYTES], uint32_t salt);

#endif
