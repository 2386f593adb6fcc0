/* buf.c - the growable, bounded buffer. Growth doubles, so n appends cost O(n). */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { FIRST_CAP = 64 };
static const size_t default_max = (size_t)1 << 30;

void is_buf_free(is_buf *b)
{
    size_t max = b->max;

    is_free(b->data);
    memset(b, 0, sizeof *b);
    b->max = max;
}

void is_buf_clear(is_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

bool is_buf_reserve(is_buf *b, size_t extra)
{
    size_t max = b->max ? b->max : default_max, cap;
    uint8_t *data;

    if (b->failed) return false;
    if (extra > max || b->len > max - extra) return b->failed = true, false;
    if (b->data && b->cap - b->len > extra) return true; /* one byte is kept for the NUL */
    cap = b->cap ? b->cap : FIRST_CAP;
    while (cap <= b->len + extra) cap = cap > max / 2 ? max + 1 : cap * 2;
    data = is_realloc(b->data, cap);
    if (!data) return b->failed = true, false;
    b->data = data;
    b->cap = cap;
    return true;
}

void is_buf_add(is_buf *b, const void *p, size_t n)
{
    if (!is_buf_reserve(b, n)) return;
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void is_buf_str(is_buf *b, const char *s)
{
    is_buf_add(b, s, strlen(s));
}

void is_buf_fmt(is_buf *b, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) b->failed = true;
    if (n < 0 || !is_buf_reserve(b, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

static void add_le(is_buf *b, uint64_t v, size_t n)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(v >> (8 * i));
    is_buf_add(b, bytes, n);
}

void is_buf_u8(is_buf *b, uint8_t v) { add_le(b, v, 1); }
void is_buf_u16(is_buf *b, uint16_t v) { add_le(b, v, 2); }
void is_buf_u32(is_buf *b, uint32_t v) { add_le(b, v, 4); }
void is_buf_u64(is_buf *b, uint64_t v) { add_le(b, v, 8); }

char *is_buf_take(is_buf *b)
{
    char *taken;

    is_buf_add(b, "", 0); /* an empty buffer is taken as an empty string */
    if (b->failed) {
        is_buf_free(b);
        return NULL;
    }
    taken = (char *)b->data;
    b->data = NULL;
    b->len = b->cap = 0;
    return taken;
}

uint16_t is_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

uint32_t is_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t is_get_u64(const uint8_t *p)
{
    return is_get_u32(p) | (uint64_t)is_get_u32(p + 4) << 32;
}
