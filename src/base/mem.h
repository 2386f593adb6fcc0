/* mem.h - allocation. Every allocation of the library goes through here, so that tests can count and fail the nth one. */
#ifndef IS_BASE_MEM_H
#define IS_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *is_malloc(size_t n);                         /* NULL on failure; n = 0 gives a freeable pointer */
void *is_calloc(size_t n, size_t size);
void *is_realloc(void *p, size_t n);               /* on failure p is untouched */
void *is_malloc_aligned(size_t align, size_t n);   /* align: a power of two >= 16; freed with is_free */
char *is_strdup(const char *s);                    /* NULL in gives NULL out */
char *is_strndup(const char *s, size_t n);
void is_free(void *p);                             /* NULL is allowed; wiped, if it is no more than 4 MiB */

/* Overwrites IS_STACK_WIPE bytes of the calling thread's stack, from the caller's frame on (a quarter of a stack that is
 * smaller than four times that). A thread calls it when it has
 * finished a piece of work that saw a user's text and may stand still next: what its calls left there (copies in frames, and
 * vector registers that the dynamic linker saves when a function is called for the first time) would otherwise stay until the
 * stack is as deep again. */
enum { IS_STACK_WIPE = 128 << 10 };
void is_stack_wipe(void);

/* Tests: fail the nth allocation from now (1 = the next; 0 = never) in this thread; is_mem_count() counts this thread's calls.
 * is_mem_fail_from fails that one and all after it. is_mem_failed: has one been refused since? */
void is_mem_fail_at(size_t nth);
void is_mem_fail_from(size_t nth);
bool is_mem_failed(void);
size_t is_mem_count(void);

/* A plug-in has its own copy of this room; it asks its host's, so that the nth allocation is one number for both. is_mem_refuse
 * counts an allocation of the calling thread and says whether it is to fail. */
bool is_mem_refuse(void);
void is_mem_ask(bool (*refuse)(void));

#endif
