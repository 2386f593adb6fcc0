/* listen.h - who listens to answers: the server's audit (serve/audit.h). */
#ifndef IS_API_LISTEN_H
#define IS_API_LISTEN_H

#include "api/answer.h"

struct is_listener {
    /* An answer is whole: its plan, all parts of the prompt from position 0 on, and its tokens. On the asking thread, while what it uses
     * is held: be quick, copy, keep no text of facts and no segments. */
    void (*on_answer)(void *ctx, const is_asking *a, const is_plan *plan, const int32_t *told, size_t n_told);
    /* Something of the partition was changed or forgotten: what is kept of it must go before this returns. */
    void (*on_gone)(void *ctx, const is_partition *p);
    void *ctx;
};

/* NULL = nobody. Returns when no call of the one before is under way any more. */
void is_handle_listen(inferscale *is, const struct is_listener *listener);
void is_handle_answered(const is_asking *a, const is_plan *plan, const int32_t *told, size_t n_told);
void is_handle_gone(inferscale *is, const is_partition *p);

#endif
