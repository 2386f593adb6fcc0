/* terminal.c - the program on a terminal of its own. */
#include "support/terminal.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/program.h"

enum { QUIET_MS = 60000 };

void terminal_start(terminal *t, const char *fmt, ...)
{
    struct winsize size = { .ws_row = 24, .ws_col = 80 };
    char command[4096], full[4200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    snprintf(full, sizeof full, "cd \"${INFERSCALE_HOME%%/*}\" && %s", command);
    *t = (terminal){ .text = calloc(1, 1) };
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        setenv("TERM", "xterm", 1);
        unsetenv("NO_COLOR");
        execl("/bin/sh", "sh", "-c", full, (char *)NULL);
        _exit(127);
    }
}

/* false: it has ended, or nothing came in time. */
static bool reads(terminal *t)
{
    struct pollfd p = { .fd = t->fd, .events = POLLIN };
    char some[4096];
    ssize_t n;

    if (poll(&p, 1, QUIET_MS) <= 0) return false;
    n = read(t->fd, some, sizeof some);
    if (n <= 0) return false; /* EIO: the other side is closed */
    t->text = realloc(t->text, t->n + (size_t)n + 1);
    memcpy(t->text + t->n, some, (size_t)n);
    t->n += (size_t)n;
    t->text[t->n] = '\0';
    return true;
}

void terminal_sees(terminal *t, const char *part)
{
    const char *found;

    while (!(found = strstr(t->text + t->seen, part)))
        if (!reads(t)) fail_msg("\"%s\" was not shown behind byte %zu of:\n%s", part, t->seen, t->text);
    t->seen = (size_t)(found - t->text) + strlen(part);
}

void terminal_type(terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

int terminal_ends(terminal *t)
{
    int status = 0;

    while (reads(t)) continue;
    close(t->fd);
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void terminal_free(terminal *t) { free(t->text); }
