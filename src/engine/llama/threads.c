/* threads.c - fewer threads on a crowded machine.
 *
 * ggml's threads wait for each other, spinning, at every node of a graph. A thread that another program keeps from its core
 * stops all of them, hundreds of times a token: two threads on two busy cores were seen to take ten times as long as one. So
 * where the caller left the number of threads to us, one is used while the machine is crowded (CPU pressure: the share of time
 * in which some task waited for a core), and all of them again when it is not. Results do not depend on it. */
#include "engine/llama/internal.h"

#include <pthread.h>

enum { CROWDED = 40, FREE = 15, LOOK_EVERY_MS = 500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double looked_ms;
static bool crowded;

static bool is_crowded(void)
{
    double now = is_now_ms();
    bool was, is;
    int pressure = 0;

    pthread_mutex_lock(&lock);
    was = crowded;
    if (looked_ms == 0 || now - looked_ms >= LOOK_EVERY_MS) {
        looked_ms = now;
        pressure = is_cpu_pressure();
        crowded = pressure >= (was ? FREE : CROWDED);
    }
    is = crowded;
    pthread_mutex_unlock(&lock);
    if (is && !was) is_log(IS_LOG_INFO, "the CPU is crowded (tasks waited for it %d%% of the time): one thread computes", pressure);
    if (was && !is) is_log(IS_LOG_INFO, "the CPU is free again: all threads compute");
    return is;
}

void is_threads_fit(struct llama_context *ctx, uint32_t wanted)
{
    int32_t n;

    if (wanted < 2) return;
    n = is_crowded() ? 1 : (int32_t)wanted;
    if (llama_n_threads(ctx) != n || llama_n_threads_batch(ctx) != n) llama_set_n_threads(ctx, n, n);
}
