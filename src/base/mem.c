/* mem.c - allocation, with a per-thread counter that lets a test fail exactly the nth call. The counter is per thread so that a
 * torture loop in one test is not disturbed by background threads. */
#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* What is longer holds rows of models, not text but for a few long bodies. */
enum { WIPE_MOST = 4 << 20 };

static _Thread_local size_t calls;
static _Thread_local size_t fail_at; /* the value of calls at which to fail; 0 = never */
static _Thread_local bool sticky, failed;
static bool (*host_refuse)(void); /* set once, before a plug-in does anything */

bool is_mem_refuse(void)
{
    calls++;
    if (!fail_at || (sticky ? calls < fail_at : calls != fail_at)) return false;
    return failed = true;
}

void is_mem_ask(bool (*refuse)(void))
{
    host_refuse = refuse;
}

static bool refused(void)
{
    return host_refuse ? host_refuse() : is_mem_refuse();
}

void *is_malloc(size_t n)
{
    return refused() ? NULL : malloc(n ? n : 1);
}

void *is_calloc(size_t n, size_t size)
{
    if (refused() || (size && n > SIZE_MAX / size)) return NULL;
    return n && size ? calloc(n, size) : calloc(1, 1);
}

static void wipe(void *p)
{
    const size_t n = p ? malloc_usable_size(p) : 0;

    if (n && n <= WIPE_MOST) explicit_bzero(p, n);
}

/* realloc would leave a copy behind where it moves. */
void *is_realloc(void *p, size_t n)
{
    const size_t had = p ? malloc_usable_size(p) : 0;

    if (refused()) return NULL;
    if (had == 0 || had > WIPE_MOST) return realloc(p, n ? n : 1);
    if (n <= had && n >= had / 2) return p;
    void *q = malloc(n ? n : 1);
    if (!q) return NULL;
    memcpy(q, p, n < had ? n : had);
    is_free(p);
    return q;
}

/* Threads have stacks as large as this limit was when the program began; a small one is not overrun. */
static size_t stack_wipe_bytes(void)
{
    static atomic_size_t known;
    size_t n = atomic_load_explicit(&known, memory_order_relaxed);
    struct rlimit limit;

    if (n) return n;
    n = IS_STACK_WIPE;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur / 4 < n)
        n = limit.rlim_cur / 4 < 1024 ? 1024 : (size_t)limit.rlim_cur / 4;
    atomic_store_explicit(&known, n, memory_order_relaxed);
    return n;
}

/* A frame of its own, so that what it takes begins where the caller's frame ends. */
__attribute__((noinline)) void is_stack_wipe(void)
{
    const size_t n = stack_wipe_bytes();
    char *room = __builtin_alloca(n);

    explicit_bzero(room, n);
}

void *is_malloc_aligned(size_t align, size_t n)
{
    void *p = NULL;

    if (refused() || n > SIZE_MAX - align) return NULL;
    return posix_memalign(&p, align, n ? n : 1) ? NULL : p;
}

char *is_strdup(const char *s)
{
    return s ? is_strndup(s, strlen(s)) : NULL;
}

char *is_strndup(const char *s, size_t n)
{
    char *copy;

    n = strnlen(s, n);
    copy = is_malloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

void is_free(void *p)
{
    wipe(p);
    free(p);
}

void is_mem_fail_at(size_t nth)
{
    fail_at = nth ? calls + nth : 0;
    sticky = failed = false;
}

void is_mem_fail_from(size_t nth)
{
    is_mem_fail_at(nth);
    sticky = true;
}

bool is_mem_failed(void)
{
    return failed;
}

size_t is_mem_count(void)
{
    return calls;
}
