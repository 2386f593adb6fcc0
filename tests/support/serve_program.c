/* serve_program.c - see serve_program.h. */
#include "support/serve_program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/live.h"

enum { READY_MS = 60000 };

/* ---- The process --------------------------------------------------------------------------------------------------------- */

static void spawn(serve_program *p, const char *home, va_list ap)
{
    char program[1100];
    char *argv[40] = { program, "serve", "--home", (char *)home, "--engine", "mock", "--port", "0", "--log", "off", "--json" };
    int n = 11, fd[2];

    snprintf(program, sizeof program, "%s/inferscale", live_plugins());
    for (const char *s; (s = va_arg(ap, const char *)) != NULL && n < 39;) argv[n++] = (char *)s;
    *p = (serve_program){ .ready_ms = -is_now_ms() };
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        if (dup2(fd[1], STDOUT_FILENO) < 0) _exit(97);
        execv(argv[0], argv);
        _exit(98);
    }
    close(fd[1]);
    p->out = fd[0];
}

void serve_program_spawn(serve_program *p, const char *home, ...)
{
    va_list ap;

    va_start(ap, home);
    spawn(p, home, ap);
    va_end(ap);
}

bool serve_program_ready(serve_program *p)
{
    char line[512] = "";
    size_t n = 0;

    while (!strchr(line, '\n')) {
        struct pollfd in = { .fd = p->out, .events = POLLIN };
        ssize_t got;

        if (poll(&in, 1, READY_MS) == 0) fail_msg("the server is not ready after %d s", READY_MS / 1000);
        got = read(p->out, line + n, sizeof line - 1 - n);
        if (got <= 0) return false;
        n += (size_t)got;
        line[n] = '\0';
    }
    p->ready_ms += is_now_ms();
    json_t *o = json_loads(line, 0, NULL);
    p->kit.port = (int)json_integer_value(json_object_get(o, "port"));
    json_decref(o);
    if (p->kit.port <= 0) fail_msg("no port in: %s", line);
    return true;
}

void serve_program_start(serve_program *p, const char *home, ...)
{
    va_list ap;

    va_start(ap, home);
    spawn(p, home, ap);
    va_end(ap);
    if (!serve_program_ready(p)) fail_msg("the server did not start");
}

static int wait_for(serve_program *p)
{
    int status;

    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->out);
    p->pid = 0;
    return status;
}

void serve_program_kill(serve_program *p)
{
    kill(p->pid, SIGKILL);
    int status = wait_for(p);
    if (!WIFSIGNALED(status)) fail_msg("the server had ended by itself: exit status %d", WEXITSTATUS(status));
}

void serve_program_end(serve_program *p)
{
    kill(p->pid, SIGTERM);
    int status = wait_for(p);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("the server ended with status %x", (unsigned)status);
}

/* ---- A client of what may die --------------------------------------------------------------------------------------------- */

serve_reply serve_program_call(const serve_program *p, const char *method, const char *target, const char *headers, const char *body)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)p->kit.port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    serve_reply r = { 0 };

    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        if (fd >= 0) close(fd);
        return r;
    }
    serve_sendf(fd, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n%s", method, target, p->kit.port, headers ? headers : "");
    if (body) serve_sendf(fd, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    serve_sendf(fd, "\r\n%s", body ? body : "");
    r = serve_read(fd, method);
    close(fd);
    if (!r.whole) r.status = 0;
    return r;
}
