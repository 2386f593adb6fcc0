/* needles.h - many byte strings looked for at once, at every offset, in streams of any length.
 *
 * Strings of 32 bytes and more are cut into blocks of 32 or 64 that are known by hash alone; shorter ones, from 8 bytes, are kept
 * (in memory that is not swapped where the system allows it) and compared whole. What is shorter, or is made of one or two different
 * bytes, would be found everywhere and is not looked for: it is counted. All is wiped when freed. One thread at a time. */
#ifndef IS_BASE_NEEDLES_H
#define IS_BASE_NEEDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct is_needles is_needles;

is_status is_needles_new(size_t max_blocks, is_needles **out); /* memory: about 32 bytes a block */
void is_needles_free(is_needles *s);                           /* NULL is allowed */

/* kind: a small number of the caller's, given back with hits. block: 32 or 64. Beyond max_blocks evenly spread blocks are taken when
 * budget says so: at most that many of this string (0 = all). */
is_status is_needles_add(is_needles *s, int kind, const void *p, size_t n, uint32_t block, size_t budget);
size_t is_needles_count(const is_needles *s);    /* looked for */
uint64_t is_needles_left_out(const is_needles *s);

/* A stream: begin, then its bytes in pieces. hit gets the number of the needle, its kind, and the offset of the match's end in the
 * stream. A non-OK status of hit stops and is returned. */
typedef is_status (*is_needle_fn)(void *ctx, uint32_t needle, int kind, uint64_t end);
void is_needles_begin(is_needles *s);
is_status is_needles_feed(is_needles *s, const uint8_t *p, size_t n, is_needle_fn hit, void *ctx);

#endif
