/* listen.c - see listen.h. Readers of a lock of its own, so that a listener that leaves waits for those that are being called. */
#include "api/listen.h"

void is_handle_listen(inferscale *is, const struct is_listener *listener)
{
    pthread_rwlock_wrlock(&is->listener_lock);
    is->listener = listener;
    pthread_rwlock_unlock(&is->listener_lock);
}

void is_handle_answered(const is_asking *a, const is_plan *plan, const int32_t *told, size_t n_told)
{
    pthread_rwlock_rdlock(&a->is->listener_lock);
    if (a->is->listener && a->has_partition && n_told > 0) a->is->listener->on_answer(a->is->listener->ctx, a, plan, told, n_told);
    pthread_rwlock_unlock(&a->is->listener_lock);
}

void is_handle_gone(inferscale *is, const is_partition *p)
{
    pthread_rwlock_rdlock(&is->listener_lock);
    if (is->listener) is->listener->on_gone(is->listener->ctx, p);
    pthread_rwlock_unlock(&is->listener_lock);
}
