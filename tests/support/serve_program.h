/* serve_program.h - `inferscale serve` as a process of its own (mock engine, a free port), to be killed, watched and started again.
 *
 *   serve_program p;
 *   serve_program_start(&p, home, "--policy", "facts:2", NULL);    // returns when it says that it is ready
 *   serve_reply r = serve_call(&p.kit, "GET", "/health", NULL, NULL);
 *   serve_program_kill(&p);                                        // or serve_program_end: SIGTERM, its exit status must be 0 */
#ifndef TESTS_SERVE_PROGRAM_H
#define TESTS_SERVE_PROGRAM_H

#include <stdbool.h>
#include <sys/types.h>

#include "support/serve_kit.h"

typedef struct serve_program {
    pid_t pid;
    double ready_ms;   /* from exec to its line */
    serve_kit kit;     /* for serve_call and serve_connect: nothing but the port is set */
    int out;           /* its standard output */
} serve_program;

/* Options and their values, NULL ends them. Asserts that it is ready within 60 s. */
void serve_program_start(serve_program *p, const char *home, ...);
/* The same, without waiting; `ready` later reads the line. false: it ended before. */
void serve_program_spawn(serve_program *p, const char *home, ...);
bool serve_program_ready(serve_program *p);
void serve_program_kill(serve_program *p);  /* kill -9; asserts that it had not ended by itself */
void serve_program_end(serve_program *p);   /* SIGTERM */

/* serve_call for a server that may die: status 0 where it did, or where the reply is not whole. */
serve_reply serve_program_call(const serve_program *p, const char *method, const char *target, const char *headers, const char *body);

#endif
