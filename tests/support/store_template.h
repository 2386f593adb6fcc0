/* store_template.h - one store that is made once and copied for each test that damages it or looks after it, and the first damages. */
#ifndef TESTS_STORE_TEMPLATE_H
#define TESTS_STORE_TEMPLATE_H

#include <stddef.h>

enum { TEMPLATE_FACTS = 24 };

extern char home[600], template_home[600]; /* the copy; what it is a copy of */
extern char *memory;     /* what the template remembers */
extern char *answer;     /* and answers */

int make_template(void **state);
int remove_template(void **state);
int fresh(void **state);         /* a copy as it was made */

const char *segment(size_t nth);         /* the nth segment file; static */
void flip(const char *path, long at);    /* a bit of a byte; at negative: from the end */
void copy_over(const char *from, const char *to);
const char *unknown(const char *where, const char *suffix); /* a path in the vault that no book leads to */
void file_unnamed(void);
void file_misplaced(void);
void file_bad(void);
void file_stray(void);
void payload_flipped(void);

#endif
