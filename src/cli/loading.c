/* loading.c - what a person sees while a model loads, and how long that took: it is no part of what is then done with it. */
#include "cli/loading.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/out.h"

enum { LONG_MS = 5000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_loading;               /* a background encoder's embedder beside the model, say */
static double started_ms, total_ms; /* while something loads */

/* "model smollm2-135m-instruct-q4_0", "embedder http://127.0.0.1:8081/v1#MODEL". */
static void put_name(const char *what, const char *name)
{
    const char *file = strstr(name, "://") ? name : strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    size_t n = strlen(file);

    if (n > 5 && strcmp(file + n - 5, ".gguf") == 0) n -= 5;
    fprintf(stderr, "%s %.*s", what, (int)(n < 80 ? n : 80), file);
}

static void begins(const char *what, const char *name)
{
    if (n_loading++ == 0) started_ms = is_now_ms();
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%sLoading the ", cli_on_in(stderr, CLI_DIM));
    put_name(what, name);
    fprintf(stderr, " ...%s", cli_off_in(stderr));
    fflush(stderr);
}

/* A log gets a line where it took long. */
static void ends(const char *what, const char *name)
{
    double ms = is_now_ms() - started_ms;

    if (--n_loading) return; /* its name is there already */
    total_ms += ms;
    if (isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
    } else if (ms >= LONG_MS) {
        fputs("Loaded the ", stderr);
        put_name(what, name);
        fprintf(stderr, ", %.0f s\n", ms / 1000);
    }
    fflush(stderr);
}

void cli_on_loading(void *ctx, int loading, const char *what, const char *name)
{
    pthread_mutex_lock(&lock);
    if (loading) begins(what, name);
    else ends(what, name);
    cli_interrupt_loading(n_loading ? ctx : NULL);
    pthread_mutex_unlock(&lock);
}

double cli_loading_ms(void)
{
    double ms;

    pthread_mutex_lock(&lock);
    ms = total_ms + (n_loading ? is_now_ms() - started_ms : 0);
    pthread_mutex_unlock(&lock);
    return ms;
}
