/* gbnf.h - grammars in the GBNF that src/serve writes: texts that follow one by chance, and whether a text does. Another
 * reading of the grammar than the engine's, and one that needs no model. */
#ifndef TESTS_GBNF_H
#define TESTS_GBNF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gbnf gbnf;

/* Asserts that every rule is defined once and used rules are there. */
gbnf *gbnf_read(const char *grammar);
void gbnf_free(gbnf *g);
/* A text drawn from the grammar, about `size` choices long (then the shortest way out); free() it. */
char *gbnf_draw(const gbnf *g, unsigned long long *seed, unsigned size);
/* The whole text follows the grammar. Texts of up to 4 KiB. */
bool gbnf_follows(const gbnf *g, const char *text);

#endif
