/* replay.c - runs a fuzz target without a fuzzer: every file given (folders are read), then random mutations of them. With any
 * compiler, so that `make test` does it under the sanitizers. Usage: fuzz_NAME [-n MUTATIONS] [-s SEED] [FILE|FOLDER]...
 * A run is repeated exactly by its seed, which is printed first; an input that kills the process is in ./crash-SEED-N
 * when the environment has FUZZ_KEEP=1. */
#include <dirent.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUTS = 4096, MAX_SIZE = 1 << 20 };

typedef struct input {
    uint8_t *data;
    size_t n;
} input;

static input inputs[MAX_INPUTS];
static size_t n_inputs;
static uint64_t state;

static uint64_t next(void) /* splitmix64 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t n)
{
    return n ? (size_t)(next() % n) : 0;
}

/* Each run gets a block of exactly its size, so that a read past its end is found. */
static void run(const uint8_t *p, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);

    if (!copy) exit(1);
    if (n) memcpy(copy, p, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void add_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *p = malloc(MAX_SIZE);
    size_t n;

    if (!f || !p || n_inputs == MAX_INPUTS) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    n = fread(p, 1, MAX_SIZE, f);
    fclose(f);
    inputs[n_inputs++] = (input){ p, n };
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* not strcoll: the order, and with it a seed's run, is the same everywhere */
}

static void add_path(const char *path)
{
    struct stat st;
    struct dirent **names = NULL;
    int n;

    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    n = scandir(path, &names, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char child[4096];

        if (names[i]->d_name[0] != '.') {
            snprintf(child, sizeof(child), "%s/%s", path, names[i]->d_name);
            add_path(child);
        }
        free(names[i]);
    }
    free(names);
}

/* One change of p[0..n), which has room for MAX_SIZE bytes; returns the new size. */
static size_t mutate(uint8_t *p, size_t n)
{
    static const uint64_t odd[] = { 0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000u, 0xffffffffu, INT64_MAX,
                                    (uint64_t)1 << 63, UINT64_MAX };
    const input *other = &inputs[below(n_inputs)];
    size_t at = below(n + 1), len = 1 + below(16);
    uint64_t v = odd[below(sizeof(odd) / sizeof(odd[0]))];

    switch (below(8)) {
    case 0: /* flip a bit */
        if (n) p[below(n)] ^= (uint8_t)(1u << below(8));
        return n;
    case 1: /* a random byte */
        if (n) p[below(n)] = (uint8_t)next();
        return n;
    case 2: /* an integer at a limit, 1 to 8 bytes */
        len = (size_t)1 << below(4);
        if (at + len <= n) memcpy(p + at, &v, len);
        return n;
    case 3: /* cut the end */
        return at;
    case 4: /* take a piece out */
        if (at + len > n) return n;
        memmove(p + at, p + at + len, n - at - len);
        return n - len;
    case 5: /* put random bytes in */
        if (n + len > MAX_SIZE) return n;
        memmove(p + at + len, p + at, n - at);
        for (size_t i = 0; i < len; i++) p[at + i] = (uint8_t)next();
        return n + len;
    case 6: /* repeat a piece */
        if (at + len > n || n + len > MAX_SIZE) return n;
        memmove(p + at + len, p + at, n - at);
        return n + len;
    default: /* the rest of another input from here on */
        len = at < other->n ? other->n - at : 0;
        if (at + len > MAX_SIZE) return n;
        if (len) memcpy(p + at, other->data + at, len);
        return at + len;
    }
}

static void keep(uint64_t seed, uint64_t i, const uint8_t *p, size_t n)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof(path), "crash-%" PRIu64 "-%" PRIu64, seed, i);
    f = fopen(path, "wb");
    if (!f) return;
    fwrite(p, 1, n, f);
    fclose(f);
}

/* The same mutations every time, unless $INFERSCALE_SEED says otherwise. */
static uint64_t first_seed(void)
{
    const char *given = getenv("INFERSCALE_SEED");

    if (given && !strcmp(given, "random")) return (uint64_t)time(NULL);
    return given && *given ? strtoull(given, NULL, 0) : 20261201;
}

int main(int argc, char **argv)
{
    uint64_t n_mutations = 10000, seed = first_seed();
    uint8_t *p = malloc(MAX_SIZE);
    const char *keep_env = getenv("FUZZ_KEEP");

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-n") && i + 1 < argc) n_mutations = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "-s") && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else add_path(argv[i]);
    }
    if (!p || !n_inputs) {
        fprintf(stderr, "give at least one input file or folder\n");
        return 2;
    }
    printf("1..2\n# seed %" PRIu64 "\n", seed);
    fflush(stdout);
    for (size_t i = 0; i < n_inputs; i++) run(inputs[i].data, inputs[i].n);
    printf("ok 1 - %zu inputs of the corpus\n", n_inputs);
    fflush(stdout);
    state = seed;
    for (uint64_t i = 0; i < n_mutations; i++) {
        const input *from = &inputs[below(n_inputs)];
        size_t n = from->n;

        if (n) memcpy(p, from->data, n);
        for (size_t k = 1 + below(4); k; k--) n = mutate(p, n);
        if (keep_env && keep_env[0]) keep(seed, i, p, n);
        run(p, n);
        if (keep_env && keep_env[0]) {
            char path[64];

            snprintf(path, sizeof(path), "crash-%" PRIu64 "-%" PRIu64, seed, i);
            remove(path);
        }
    }
    printf("ok 2 - %" PRIu64 " mutations\n", n_mutations);
    for (size_t i = 0; i < n_inputs; i++) free(inputs[i].data);
    free(p);
    return 0;
}
