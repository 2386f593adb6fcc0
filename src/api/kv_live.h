/* kv_live.h - the live KV of a connector, shared by the files of its public functions. */
#ifndef IS_API_KV_LIVE_H
#define IS_API_KV_LIVE_H

#include <pthread.h>

#include "kv/head_tier.h"
#include "kv/rope.h"
#include "kv/segment_part.h"

struct inferscale_kv {
    const is_fs *fs;
    is_geometry *geometry;      /* of the whole model */
    is_buf bytes;               /* its serial form */
    uint8_t fingerprint[IS_HASH_BYTES];
    is_rope *rope;
    char **dirs;
    uint32_t n_dirs;
    pthread_mutex_t lock;       /* of ram, and never held while a file is read */
    ram_tier ram;               /* parts of segments, by name, folder and cut */
    uint64_t n_forgotten;       /* calls of inferscale_kv_forget */
    head_tier heads;            /* what inferscale_kv_check has read */
};

/* The segment's file, opened and found to be of this model and to have the part's tokens. */
is_status kv_open_part(inferscale_kv *kv, const inferscale_kv_part *part, is_segment_file **out);
is_status kv_not_there(void);
/* DIR/ab/abcd....seg; is_free. NULL = out of memory. */
char *kv_part_path(const inferscale_kv *kv, const inferscale_kv_part *part);
is_status kv_part_known(const inferscale_kv *kv, const inferscale_kv_part *part); /* dir and range make sense */

#endif
