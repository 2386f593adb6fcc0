/* utf8.c - checks of text. */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length of the well-formed character at p, 0 if there is none. *cp = its code point. */
static size_t decode(const uint8_t *p, size_t n, uint32_t *cp)
{
    size_t len;
    uint32_t c;

    if (n == 0) return 0;
    if (p[0] < 0x80) return *cp = p[0], 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) len = 2, c = p[0] & 0x1F;
    else if ((p[0] & 0xF0) == 0xE0) len = 3, c = p[0] & 0x0F;
    else if (p[0] >= 0xF0 && p[0] <= 0xF4) len = 4, c = p[0] & 0x07;
    else return 0;
    if (n < len) return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3F);
    }
    if (len == 3 && (c < 0x800 || (c >= 0xD800 && c <= 0xDFFF))) return 0;
    if (len == 4 && (c < 0x10000 || c > 0x10FFFF)) return 0;
    *cp = c;
    return len;
}

bool is_utf8_valid(const char *p, size_t n, size_t *bad_at)
{
    const uint8_t *bytes = (const uint8_t *)p;
    size_t at = 0;

    while (at < n) {
        uint32_t cp = 0;
        size_t len = decode(bytes + at, n - at, &cp);

        if (len == 0 || cp == 0) {
            if (bad_at) *bad_at = at;
            return false;
        }
        at += len;
    }
    return true;
}

/* Unicode's White_Space, and the two invisible characters that text copied from the web carries (zero width space, BOM). */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200B) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000 || c == 0xFEFF;
}

bool is_utf8_blank(const char *p, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)p;
    size_t at = 0;

    while (at < n) {
        uint32_t cp = 0;
        size_t len = decode(bytes + at, n - at, &cp);

        if (len == 0 || !is_space(cp)) return false;
        at += len;
    }
    return true;
}

size_t is_utf8_whole(const char *p, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)p;

    for (size_t back = 1; back <= 3 && back <= n; back++) {
        uint8_t c = bytes[n - back];
        size_t need = c >= 0xF0 && c <= 0xF4 ? 4 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xC2 && c <= 0xDF ? 2 : 1;

        if ((c & 0xC0) == 0x80) continue; /* a continuation byte: its lead is further back */
        return need > back ? n - back : n;
    }
    return n;
}
