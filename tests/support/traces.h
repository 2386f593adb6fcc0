/* traces.h - a search for what must not be anywhere any more: words, vectors and windows of KV, at every offset of every file under a
 * folder. Written for tests of forgetting, apart from the library's own proof. */
#ifndef TESTS_TRACES_H
#define TESTS_TRACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACES_WORD = 24, TRACES_WINDOW = 64, TRACES_VECTOR = 64 };

typedef struct traces {
    char (*words)[TRACES_WORD];
    uint8_t (*vectors)[TRACES_VECTOR];
    uint8_t (*windows)[TRACES_WINDOW];
    size_t n_words, n_vectors, n_windows;
    uint64_t *table;         /* rolling hashes of the windows, open addressing */
    size_t mask;
} traces;

void traces_add_word(traces *x, const char *word);
void traces_add_vector(traces *x, const void *vector);
void traces_add_window(traces *x, const void *window); /* of one repeated byte: left out */
void traces_free(traces *x);

/* Hits in all files under dir; *where = the first file with one. wanted (may be NULL): is this vector a living item's too? */
size_t traces_search(traces *x, const char *dir, bool (*wanted)(void *ctx, const uint8_t *vector), void *ctx, char where[900]);

/* Calls each(path) for every file under dir. */
void traces_each_file(const char *dir, void (*each)(void *ctx, const char *path), void *ctx);

#endif
