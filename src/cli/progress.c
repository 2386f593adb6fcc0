/* progress.c - progress on a terminal, and Ctrl-C. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/loading.h"

static volatile int interrupted;
static volatile sig_atomic_t n_interrupts, patience = 1; /* so many are asked for politely, one more ends the process */
static inferscale **volatile loading; /* where the handle is that Ctrl-C shall not wait for */

static void stop_loading(void)
{
    inferscale **at = loading;
    if (at) inferscale_stop_loading(__atomic_load_n(at, __ATOMIC_ACQUIRE)); /* one atomic store, or nothing */
}

static void on_interrupt(int sig)
{
    if (++n_interrupts > patience) {
        signal(sig, SIG_DFL);
        raise(sig); /* comes when this handler returns */
    }
    interrupted = 1;
    stop_loading();
}

const volatile int *cli_interrupt(void)
{
    static int installed;
    if (!installed) {
        struct sigaction sa;
        memset(&sa, 0, sizeof sa);
        sa.sa_handler = on_interrupt; /* no SA_RESTART: a waiting read returns */
        sigaction(SIGINT, &sa, NULL);
        installed = 1;
    }
    return &interrupted;
}

bool cli_interrupted(void) { return interrupted; }

void cli_interrupt_over(int more)
{
    patience = more;
    n_interrupts = 0;
    interrupted = 0;
}

bool cli_input_comes(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    sigset_t interrupt, before;
    int n;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    do n = interrupted ? 0 : ppoll(&p, 1, NULL, &before);
    while (n < 0 && errno == EINTR && !interrupted);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !interrupted;
}

void cli_interrupt_loading(inferscale **at)
{
    loading = at;
    if (interrupted) stop_loading();
}

enum { BAR = 24, TITLE = 18, LINE_MS = 5000 };

/* Loading a model is no part of what is done with it. */
static double worked_s(const cli_progress *p)
{
    return (is_now_ms() - p->started_ms - (cli_loading_ms() - p->loading_ms)) / 1000;
}

/* For logs: whole lines, few of them. */
static void say(cli_progress *p, const char *what)
{
    double seconds = worked_s(p);
    fprintf(stderr, "%s: %llu", what && *what ? what : p->title, (unsigned long long)p->done);
    if (p->total) fprintf(stderr, " of %llu", (unsigned long long)p->total);
    fprintf(stderr, ", %.0f s\n", seconds);
    fflush(stderr);
    p->drawn_ms = is_now_ms();
}

static void draw(cli_progress *p, const char *what)
{
    double seconds = worked_s(p);
    fprintf(stderr, "\r%-*.*s ", TITLE, TITLE, what && *what ? what : p->title);
    if (p->total) {
        uint64_t done = p->done < p->total ? p->done : p->total;
        int full = (int)(done * BAR / p->total);
        for (int i = 0; i < BAR; i++) fputs(i < full ? "\xe2\x96\x88" : "\xe2\x96\x91", stderr);
        fprintf(stderr, " %llu/%llu", (unsigned long long)p->done, (unsigned long long)p->total);
        if (done && done < p->total && seconds > 1)
            fprintf(stderr, "  %.0f s left", seconds / (double)done * (double)(p->total - done));
        else
            fprintf(stderr, "  %.1f s", seconds);
    } else {
        fprintf(stderr, "%llu  %.1f s", (unsigned long long)p->done, seconds);
    }
    fputs("\033[K", stderr);
    fflush(stderr);
    p->drawn_ms = is_now_ms();
}

void cli_progress_start(cli_progress *p, const char *title, uint64_t total)
{
    *p = (cli_progress){ .title = title, .started_ms = is_now_ms(), .loading_ms = cli_loading_ms(), .total = total, .tty = isatty(STDERR_FILENO) };
    cli_interrupt(); /* from here on Ctrl-C stops the work, not the process */
    p->drawn_ms = p->started_ms;
    if (p->tty) draw(p, NULL);
}

int cli_progress_at(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    cli_progress *p = ctx;
    p->done = done;
    p->total = total;
    if (!p->tty && is_now_ms() - p->drawn_ms >= LINE_MS) say(p, what);
    if (p->tty && (is_now_ms() - p->drawn_ms > 80 || (total && done >= total))) draw(p, what);
    return *cli_interrupt();
}

void cli_progress_end(cli_progress *p)
{
    if (p->tty) fputs("\r\033[K", stderr);
    fflush(stderr);
    p->tty = false;
}
