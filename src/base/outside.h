/* outside.h - a thread announces that it waits for an answer from outside of this process. The
 * owner of the thread may give its place to another one meanwhile: the server does so with the
 * places of its workers, so that an endpoint that does not answer holds none of them. */
#ifndef IS_BASE_OUTSIDE_H
#define IS_BASE_OUTSIDE_H

typedef struct is_outside {
    void (*begin)(void *ctx); /* the thread is about to wait */
    void (*end)(void *ctx);   /* it has waited; may itself wait until there is a place again */
    void *ctx;
} is_outside;

/* Of this thread, from now on; lives as long as the thread works, or until it says another.
 * NULL = waiting is not announced, as at the start. */
void is_outside_tell(const is_outside *o);

/* Around the waiting. No lock is held at either. They do not nest. */
void is_outside_begin(void);
void is_outside_end(void);

#endif
