/* silent.h - an endpoint on the loopback that takes connections and requests, and never answers:
 * the kernel accepts what nobody takes from the line. Asserts. */
#ifndef TESTS_SUPPORT_SILENT_H
#define TESTS_SUPPORT_SILENT_H

typedef struct silent {
    int fd;
    char url[64]; /* "http://127.0.0.1:PORT/v1" */
} silent;

void silent_start(silent *s);
void silent_stop(silent *s);

#endif
