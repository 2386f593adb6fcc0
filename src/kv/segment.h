/* segment.h - one encoded span's KV rows without position: in memory, and as a file (docs/formats.md).
 *
 * Payload order: plane -> KV head -> token -> dim. Planes are 64-byte aligned; an offset table and a checksum for every
 * (plane, head) let a reader that holds some layers and heads read only its bytes. Segments are immutable. */
#ifndef IS_KV_SEGMENT_H
#define IS_KV_SEGMENT_H

#include "base/file.h"
#include "base/hash.h"
#include "kv/codec.h"
#include "kv/geometry.h"

/* Everything a segment was computed from besides its rows. Copied into the segment. */
typedef struct is_segment_desc {
    uint8_t name[IS_HASH_BYTES];         /* keyed hash of all inputs (encode room) */
    uint8_t fingerprint[IS_HASH_BYTES];  /* of the model */
    is_codec codec;
    uint32_t n_tokens;
    const int32_t *tokens;               /* [n_tokens] the span's own ids */
    uint32_t n_context;                  /* tokens that stood before it when it was encoded */
    const is_geometry *geometry;
} is_segment_desc;

typedef struct is_segment is_segment;    /* reference counted; made with one reference */

/* From rows[plane] = F32 [n_tokens][n_heads][head_dim], keys un-rotated. Rounds once, to the codec. */
is_status is_segment_new(const is_segment_desc *desc, const float *const *rows, is_segment **out);
/* From rows[plane] = [n_tokens][n_heads][head_dim] values of the codec, a plain one: bits are kept. E_UNSUPPORTED: a value that is not a number. */
is_status is_segment_new_raw(const is_segment_desc *desc, const void *const *rows, is_segment **out);
/* The same rows in another codec, under another name: each value is rounded once more, from f32 that is the first time. */
is_status is_segment_recode(const is_segment *s, const uint8_t name[IS_HASH_BYTES], is_codec codec, is_segment **out);
is_segment *is_segment_ref(is_segment *s);
void is_segment_unref(is_segment *s);    /* NULL is allowed */

const is_segment_desc *is_segment_info(const is_segment *s);
/* One head of one plane: n_tokens rows of head_dim values in the codec, contiguous. */
const void *is_segment_head(const is_segment *s, uint32_t plane, uint32_t head);
size_t is_segment_bytes(const is_segment *s); /* memory held */
/* A bare segment has no rows (is_segment_head is not to be asked): what a plan holds where another process injects them. */
bool is_segment_has_rows(const is_segment *s);
/* Its tokens and rows are overwritten when the last reference goes. */
void is_segment_wipe(is_segment *s);

/* The file form: whole write (caller provides a path; written with is_fs, synced, not renamed), whole read with all checksums
 * verified. Errors of read: E_NOTFOUND, E_CORRUPT (torn or rotten), E_FOREIGN (not a segment, or a newer version). */
is_status is_segment_write(const is_segment *s, const is_fs *fs, const char *path); /* bare: E_INVALID */
is_status is_segment_read(const is_fs *fs, const char *path, is_segment **out);
/* A bare segment: the file's head, read and verified, and nothing else of it. Errors as read. */
is_status is_segment_read_bare(const is_fs *fs, const char *path, is_segment **out);
/* The same from bytes in memory (fuzzing, the network). */
is_status is_segment_parse(const uint8_t *p, size_t n, is_segment **out);
is_status is_segment_serialize(const is_segment *s, is_buf *out);

#endif
