/* utf8.h - is this text what it claims to be. */
#ifndef IS_BASE_UTF8_H
#define IS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* True if p[0..n) is well-formed UTF-8 (no overlong forms, no surrogates, <= U+10FFFF) without NUL. *bad_at (may be NULL) = the
 * first wrong byte. */
bool is_utf8_valid(const char *p, size_t n, size_t *bad_at);
/* True if there is nothing but white space (ASCII and Unicode) in it. */
bool is_utf8_blank(const char *p, size_t n);
/* The longest prefix of p[0..n) that ends on a character boundary, for streaming: bytes of an unfinished character stay out. */
size_t is_utf8_whole(const char *p, size_t n);

#endif
