/* store_template.c - see store_template.h. */
#include "support/store_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/store_kit.h"

static char *folder;
char home[600], template_home[600];
char *memory;
char *answer;

/* One store is made once, and copied for each damage. */
int make_template(void **state)
{
    inferscale *is;
    inferscale_answer *a;

    folder = scratch_make();
    snprintf(template_home, sizeof template_home, "%s/template", folder);
    snprintf(home, sizeof home, "%s/home", folder);
    is = store_open(template_home, NULL, NULL, false);
    store_fill(is, TEMPLATE_FACTS, true);
    memory = store_dump(is);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_true(a->tokens_injected > 0);
    answer = strdup(a->text);
    inferscale_answer_free(a);
    inferscale_close(is);
    return 0;
}

int remove_template(void **state)
{
    free(memory);
    free(answer);
    scratch_remove(folder);
    return 0;
}

int fresh(void **state)
{
    store_copy(template_home, home);
    return 0;
}

/* The nth segment file; static. */
const char *segment(size_t nth)
{
    static char path[1024];
    size_t n;
    char **files = store_files(home, ".seg", &n);

    assert_true(nth < n);
    snprintf(path, sizeof path, "%s", files[nth]);
    store_files_free(files, n);
    return path;
}

void flip(const char *path, long at) /* negative: from the end */
{
    size_t n;
    char *bytes = store_read(path, &n);

    bytes[at < 0 ? n - (size_t)-at : (size_t)at] ^= 0x10;
    store_write(path, bytes, n);
    free(bytes);
}

void copy_over(const char *from, const char *to)
{
    size_t n;
    char *bytes = store_read(from, &n);

    store_write(to, bytes, n);
    free(bytes);
}

/* DIR/ab of a name that no segment has. */
const char *unknown(const char *where, const char *suffix)
{
    static char path[1024];
    char hex[65];

    memset(hex, 'e', 64);
    hex[64] = 0;
    snprintf(path, sizeof path, "%s/vault/%s", home, where);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/vault/%s/%s%s", home, where, hex, suffix);
    return path;
}

void file_unnamed(void) { copy_over(segment(0), unknown("ee", ".seg")); }
void file_misplaced(void) { copy_over(segment(0), unknown("ab", ".seg")); }
void file_bad(void) { store_write(unknown("ee", ".bad"), "x", 1); }
void file_stray(void) { store_write(unknown("ee", ".txt"), "notes of somebody", 17); }
void payload_flipped(void) { flip(segment(4), -65); }
