/* terminal.h - the program on a terminal of its own, as a person has it: what it shows, and keys that are typed.
 *
 *   terminal t;
 *   terminal_start(&t, "$IS chat --engine mock");      // a shell command in the work folder of program.h
 *   terminal_sees(&t, "you>");                         // waits for it, behind what was seen before
 *   terminal_type(&t, "\x03");                         // Ctrl-C
 *   assert_int_equal(terminal_ends(&t), 130);          // the exit code, 128 + N where signal N ended it */
#ifndef TESTS_SUPPORT_TERMINAL_H
#define TESTS_SUPPORT_TERMINAL_H

#include <stddef.h>
#include <sys/types.h>

typedef struct terminal {
    pid_t pid;
    int fd;
    char *text;       /* all it has shown, NUL-terminated */
    size_t n, seen;
} terminal;

void terminal_start(terminal *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Fails the test if the program ends before, or shows nothing new for a minute. */
void terminal_sees(terminal *t, const char *part);
void terminal_type(terminal *t, const char *keys);
/* Reads on until it has ended. text stays until terminal_free. */
int terminal_ends(terminal *t);
void terminal_free(terminal *t);

#endif
