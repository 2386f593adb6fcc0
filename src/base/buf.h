/* buf.h - a growable, bounded byte buffer. A failed append poisons the buffer: later appends do nothing, and is_buf_ok() is
 * false, so a builder checks once at the end. */
#ifndef IS_BASE_BUF_H
#define IS_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct is_buf {
    uint8_t *data;   /* owned; always NUL-terminated after an append (the NUL is not counted in len) */
    size_t len, cap;
    size_t max;      /* limit in bytes; 0 = 1 GiB */
    bool failed;
} is_buf;

#define IS_BUF_INIT { 0 }

void is_buf_free(is_buf *b);             /* frees and zeroes */
void is_buf_clear(is_buf *b);            /* empties, keeps the memory, clears failed */
bool is_buf_reserve(is_buf *b, size_t extra);
void is_buf_add(is_buf *b, const void *p, size_t n);
void is_buf_str(is_buf *b, const char *s);
void is_buf_fmt(is_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void is_buf_u8(is_buf *b, uint8_t v);    /* integers are little-endian */
void is_buf_u16(is_buf *b, uint16_t v);
void is_buf_u32(is_buf *b, uint32_t v);
void is_buf_u64(is_buf *b, uint64_t v);
static inline bool is_buf_ok(const is_buf *b) { return !b->failed; }
char *is_buf_take(is_buf *b);            /* the bytes as a string to be freed with is_free; NULL if failed; b is emptied */

/* Reading little-endian values from memory that need not be aligned. */
uint16_t is_get_u16(const uint8_t *p);
uint32_t is_get_u32(const uint8_t *p);
uint64_t is_get_u64(const uint8_t *p);

#endif
