/* wipe.c - in the program, and nowhere else, all memory is wiped when it is freed: what was forgotten
 * is not to be found in a core dump.
 *
 * glibc lets a program put functions of its own in the place of free and realloc; every library of the
 * process then calls these (SQLite, jansson, libcurl, libmicrohttpd, libllama and its C++). They hand
 * on to glibc's. A mapped block goes back to the system as a whole, and needs no wiping. SQLite keeps
 * small blocks and pages for itself unless it is told not to. Programs that use the library keep their
 * own allocator and their own SQLite: what the library frees it wipes itself (base/mem.c).
 *
 * Where another allocator was put in glibc's place (LD_PRELOAD), blocks are handed on to that one as
 * they are: whether it wipes is its affair. */
#include "cli/wipe.h"

#include <dlfcn.h>
#include <malloc.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

void cli_wipe_set_up(void)
{
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    sqlite3_config(SQLITE_CONFIG_PAGECACHE, NULL, 0, 0);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern void *__libc_malloc(size_t n);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

/* The address of malloc is that of the function that the whole process calls. */
static int is_glibcs(void) { return malloc == __libc_malloc; }

static void hand_on_free(void *p)
{
    static void (*next)(void *); /* found by each thread alike */
    void (*f)(void *) = __atomic_load_n(&next, __ATOMIC_ACQUIRE);

    if (!f) {
        *(void **)&f = dlsym(RTLD_NEXT, "free");
        __atomic_store_n(&next, f, __ATOMIC_RELEASE);
    }
    f(p);
}

static void *hand_on_realloc(void *p, size_t n)
{
    static void *(*next)(void *, size_t);
    void *(*f)(void *, size_t) = __atomic_load_n(&next, __ATOMIC_ACQUIRE);

    if (!f) {
        *(void **)&f = dlsym(RTLD_NEXT, "realloc");
        __atomic_store_n(&next, f, __ATOMIC_RELEASE);
    }
    return f(p, n);
}

/* The bit of a chunk's size that says so; glibc's layout since 1996. */
static int is_mapped(const void *p) { return (((const size_t *)p)[-1] & 2) != 0; }

__attribute__((visibility("default"))) void free(void *p)
{
    if (!p) return;
    if (!is_glibcs()) {
        hand_on_free(p);
        return;
    }
    if (!is_mapped(p)) explicit_bzero(p, malloc_usable_size(p));
    __libc_free(p);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t n)
{
    size_t had;
    void *q;

    if (!is_glibcs()) return hand_on_realloc(p, n);
    if (!p) return __libc_malloc(n);
    if (is_mapped(p)) return __libc_realloc(p, n);
    if (n == 0) {
        free(p);
        return NULL;
    }
    had = malloc_usable_size(p);
    if (n <= had) { /* it may be cut in two */
        explicit_bzero((char *)p + n, had - n);
        return __libc_realloc(p, n);
    }
    q = __libc_malloc(n);
    if (!q) return NULL;
    memcpy(q, p, had);
    free(p);
    return q;
}

#endif
