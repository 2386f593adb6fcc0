/* program.h - runs the program itself, as a person or a script does, in a folder of its own. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct program_result {
    int code;          /* exit code; -1 = killed */
    char *out, *err;
    json_t *json;      /* the last line of out, if it is an object; else NULL */
} program_result;

/* Of the last sh(). */
extern program_result last;

/* Group set-up and tear-down: finds the program in the folder above the test's own, makes a folder; $IS is the program,
 * $INFERSCALE_HOME the store. */
int program_set_up(void **state);
int program_tear_down(void **state);
/* Before each test: an empty work folder, no store. */
int program_fresh(void **state);

/* Runs a shell command in the work folder; returns the exit code. */
int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Writes a file there. */
void write_file(const char *name, const char *text, size_t n);

#define expect_code(want)                                                                                                      \
    do {                                                                                                                       \
        if (last.code != (want)) fail_msg("exit code %d, not %d\n%s\n%s", last.code, (want), last.out, last.err);              \
    } while (0)
#define expect_in(text, part)                                                                                                  \
    do {                                                                                                                       \
        if (!strstr((text), (part))) fail_msg("\"%s\" is not in: %s", (part), (text));                                         \
    } while (0)

/* The JSON object: members, items of its lists, members of those. */
const char *text_at(const char *name);
json_int_t number_at(const char *name);
json_t *item(const char *list, size_t i);
size_t count(const char *list);
const char *of(json_t *o, const char *name);
/* The JSON object is an error with this code, and its message has part in it. */
void expect_error(const char *code, const char *part);

#endif
