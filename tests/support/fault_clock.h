/* fault_clock.h - one count of I/O for the whole store: the files of vault and helpers (fault_fs.h) and SQLite's (fault_vfs.h) tick
 * the same clock, so that "the nth write or sync" is one number. A clock refuses operations, and tells a disk (fault_disk.h) when
 * it is time to lose power. Thread safe. */
#ifndef TESTS_FAULT_CLOCK_H
#define TESTS_FAULT_CLOCK_H

#include <stdbool.h>

enum fault_op { FAULT_WRITE /* and truncate, mkdir */, FAULT_SYNC /* files and folders */, FAULT_RENAME, FAULT_READ /* and stat, list */,
                FAULT_OPEN, FAULT_UNLINK, FAULT_OPS };
enum {
    FAULT_ANY = (1u << FAULT_OPS) - 1,
    FAULT_CHANGES = 1u << FAULT_WRITE | 1u << FAULT_SYNC | 1u << FAULT_RENAME | 1u << FAULT_UNLINK, /* what power loss can catch */
};

typedef struct fault_clock fault_clock;

fault_clock *fault_clock_new(void);          /* aborts when memory is out, as everything here */
void fault_clock_free(fault_clock *c);

/* From now on the nth operation (1 = the next) of those in mask (bits 1 << FAULT_...) is refused, with EIO or ENOSPC; sticky: and
 * all of them after it, until fault_clock_off. Counting starts anew. */
void fault_clock_refuse(fault_clock *c, unsigned mask, int errnum, unsigned nth, bool sticky);
void fault_clock_off(fault_clock *c);
unsigned fault_clock_hits(const fault_clock *c);              /* refused since fault_clock_refuse */
unsigned fault_clock_count(const fault_clock *c, unsigned mask); /* seen since fault_clock_new or _refuse */
/* The power is gone: every operation is refused with EIO until fault_clock_off. */
void fault_clock_stop(fault_clock *c);

/* From now on `at` is called before each operation of mask, on the thread that makes it; NULL = no more. */
void fault_clock_watch(fault_clock *c, unsigned mask, void (*at)(void *ctx), void *ctx);

/* For the layers: counts an operation; 0 = go on, else the errno to fail with. */
int fault_clock_tick(fault_clock *c, enum fault_op op);

#endif
