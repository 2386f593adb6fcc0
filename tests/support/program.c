/* program.c - runs the program itself. */
#include "support/program.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[4096], home[64], work[80];

program_result last;

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *s = NULL;
    long n;
    if (!f) return strdup("");
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    s = calloc(1, (size_t)n + 1);
    assert_int_equal(fread(s, 1, (size_t)n, f), n);
    fclose(f);
    return s;
}

void write_file(const char *name, const char *text, size_t n)
{
    char path[256];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", work, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void forget_last(void)
{
    free(last.out);
    free(last.err);
    json_decref(last.json);
    memset(&last, 0, sizeof last);
}

static void parse_last_line(void)
{
    char *line = last.out;
    size_t n = strlen(line);
    while (n && line[n - 1] == '\n') n--;
    for (size_t i = n; i-- > 0;)
        if (line[i] == '\n') {
            line += i + 1;
            n -= i + 1;
            break;
        }
    if (line[0] == '{') last.json = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
}

int sh(const char *fmt, ...)
{
    char command[8192], full[12288], path[256];
    int status;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    forget_last();
    snprintf(full, sizeof full, "cd %s && { %s ; } >%s/.out 2>%s/.err", work, command, work, work);
    status = system(full);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    snprintf(path, sizeof path, "%s/.out", work);
    last.out = read_file(path);
    snprintf(path, sizeof path, "%s/.err", work);
    last.err = read_file(path);
    parse_last_line();
    return last.code;
}

const char *text_at(const char *name) { return json_string_value(json_object_get(last.json, name)); }
json_int_t number_at(const char *name) { return json_integer_value(json_object_get(last.json, name)); }
json_t *item(const char *list, size_t i) { return json_array_get(json_object_get(last.json, list), i); }
size_t count(const char *list) { return json_array_size(json_object_get(last.json, list)); }
const char *of(json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

void expect_error(const char *code, const char *part)
{
    json_t *e = json_object_get(last.json, "error");
    if (!e) fail_msg("no error object in: %s", last.out);
    assert_string_equal(of(e, "code"), code);
    expect_in(of(e, "message"), part);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw) { return remove(path); }

int program_fresh(void **state)
{
    nftw(work, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return mkdir(work, 0700);
}

int program_set_up(void **state)
{
    char exe[2048], is_home[128];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;
    if (n < 0) return -1;
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    *slash = '\0';
    snprintf(program, sizeof program, "%s/../inferscale", exe);
    if (access(program, X_OK) != 0) {
        print_error("%s is not there; build it with make bin plugins\n", program);
        return -1;
    }
    snprintf(home, sizeof home, "/tmp/is-test-cli-XXXXXX");
    if (!mkdtemp(home)) return -1;
    snprintf(work, sizeof work, "%s/w", home);
    snprintf(is_home, sizeof is_home, "%s/store", work);
    setenv("IS", program, 1);
    setenv("INFERSCALE_HOME", is_home, 1);
    unsetenv("INFERSCALE_MOCK");
    unsetenv("INFERSCALE_PLUGINS");
    return 0;
}

int program_tear_down(void **state)
{
    forget_last();
    nftw(home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
