/* serve_child.c - see serve_child.h. */
#include "cli/serve_child.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "eval/load.h"

enum { ARGS = 64, READY_S = 120, END_S = 60, POLL_US = 50000 };

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

/* A port that was free a moment ago. */
static is_status free_port(int *out)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && getsockname(fd, (struct sockaddr *)&at, &n) == 0;

    if (!good) {
        is_fail_errno("no port of 127.0.0.1 can be had");
        if (fd >= 0) close(fd);
        return INFERSCALE_E_IO;
    }
    *out = ntohs(at.sin_port);
    close(fd);
    return INFERSCALE_OK;
}

/* In the new process. */
static void become_server(const serve_child *c, const char **argv)
{
    int log = open(c->log, O_WRONLY | O_CREAT | O_TRUNC, 0600), null = open("/dev/null", O_RDWR);

    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it does not outlive the benchmark */
    setpgid(0, 0);                    /* Ctrl-C is for the benchmark, which ends it in order */
    if (log >= 0 && null >= 0 && dup2(null, 0) >= 0 && dup2(log, 1) >= 0 && dup2(log, 2) >= 0)
        execv("/proc/self/exe", (char *const *)argv);
    _exit(127);
}

static void last_line(const serve_child *c, char *out, size_t cap)
{
    FILE *f = fopen(c->log, "r");
    char line[600];

    snprintf(out, cap, "it said nothing");
    while (f && fgets(line, sizeof line, f))
        if (line[0] != '\n') snprintf(out, cap, "%.*s", (int)strcspn(line, "\n"), line);
    if (f) fclose(f);
}

static is_status wait_ready(serve_child *c)
{
    double t0 = is_now_ms();
    char said[600];

    while (is_now_ms() - t0 < READY_S * 1000.0 && !*cli_interrupt()) {
        json_t *reply = NULL;
        long status = 0;
        int how;

        if (waitpid(c->pid, &how, WNOHANG) == c->pid) {
            c->pid = 0;
            last_line(c, said, sizeof said);
            return is_fail(INFERSCALE_E_ENGINE, "the server did not start: %.500s", said);
        }
        if (load_call(c->url, NULL, "GET", "/ready", NULL, &status, &reply) == INFERSCALE_OK && status == 200) {
            json_decref(reply);
            return INFERSCALE_OK;
        }
        json_decref(reply);
        usleep(POLL_US);
    }
    if (*cli_interrupt()) return is_fail(INFERSCALE_E_CANCELLED, "cancelled");
    last_line(c, said, sizeof said);
    return is_fail(INFERSCALE_E_ENGINE, "the server is not ready after %d s: %.500s", (int)READY_S, said);
}

is_status serve_child_start(const char *const *options, size_t n, serve_child *c)
{
    const char *tmp = getenv("TMPDIR"), *argv[ARGS];
    char port_text[16];
    size_t at = 0;
    int port = 0;
    is_status st;

    memset(c, 0, sizeof *c);
    snprintf(c->home, sizeof c->home, "%.480s/inferscale-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(c->home)) {
        c->home[0] = '\0';
        return is_fail_errno("no folder can be made in %.480s; set TMPDIR to one that can be written", tmp && *tmp ? tmp : "/tmp");
    }
    snprintf(c->log, sizeof c->log, "%s/server.log", c->home);
    IS_TRY_GOTO(st, fail, free_port(&port));
    snprintf(c->url, sizeof c->url, "http://127.0.0.1:%d", port);
    snprintf(port_text, sizeof port_text, "%d", port);
    const char *const own[] = { "inferscale", "serve", "--home", c->home, "--host", "127.0.0.1", "--port", port_text };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) argv[at++] = own[i];
    for (size_t i = 0; i < n && at + 1 < ARGS; i++) argv[at++] = options[i];
    argv[at] = NULL;
    c->pid = fork();
    if (c->pid == 0) become_server(c, argv);
    if (c->pid < 0) {
        c->pid = 0;
        IS_TRY_GOTO(st, fail, is_fail_errno("no process can be started for the server"));
    }
    IS_TRY_GOTO(st, fail, wait_ready(c));
    return INFERSCALE_OK;
fail:
    serve_child_end(c);
    return st;
}

int serve_child_end(serve_child *c)
{
    double t0 = is_now_ms();
    int how = 0;

    if (c->pid > 0) {
        kill(c->pid, SIGTERM);
        while (waitpid(c->pid, &how, WNOHANG) == 0) {
            if (is_now_ms() - t0 > END_S * 1000.0) kill(c->pid, SIGKILL);
            usleep(POLL_US);
        }
    }
    c->pid = 0;
    if (c->home[0]) nftw(c->home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    c->home[0] = '\0';
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}
