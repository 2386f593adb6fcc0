/* forget_kit.c - see forget_kit.h. */
#include "support/forget_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <ftw.h>

#include "support/scratch.h"

char *forget_home;
static char forget_plugins[1024];
static const inferscale_scope anna = { .user = "anna" };

int forget_setup(void **state)
{
    ssize_t n = readlink("/proc/self/exe", forget_plugins, sizeof forget_plugins - 1);

    (void)state;
    if (n < 0) return 1;
    forget_plugins[n] = 0;
    *strrchr(forget_plugins, '/') = 0;
    *strrchr(forget_plugins, '/') = 0;
    forget_home = scratch_make();
    return 0;
}

int forget_teardown(void **state)
{
    (void)state;
    scratch_remove(forget_home);
    return 0;
}

inferscale *forget_open(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = forget_home;
    o.engine = "mock";
    o.model = model;
    o.plugin_dir = forget_plugins;
    OK(inferscale_open(&is, &o));
    return is;
}

int64_t forget_tell_from(inferscale *is, const inferscale_scope *who, const char *text, int64_t turn)
{
    inferscale_fact f = { .text = text, .event_time = LONG_AGO, .source_turn = turn };
    inferscale_event e = { 0 };

    OK(inferscale_remember(is, who, &f, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    return e.id;
}

int64_t forget_tell(inferscale *is, const char *text)
{
    return forget_tell_from(is, &anna, text, 0);
}

int64_t forget_add_turn(inferscale *is, const char *text)
{
    inferscale_turn t = { .text = text, .time = LONG_AGO };
    int64_t id = 0;

    OK(inferscale_add_turns(is, &anna, &t, 1, &id));
    return id;
}

inferscale_list *forget_recall(inferscale *is, const char *query, int kinds, uint32_t k, int64_t as_of)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;

    o.k = k;
    o.kinds = kinds;
    o.as_of = as_of;
    o.method = INFERSCALE_LEXICAL;
    OK(inferscale_recall(is, &anna, query, &o, &l));
    return l;
}

size_t forget_found(inferscale *is, const char *query, int64_t as_of)
{
    inferscale_list *l = forget_recall(is, query, INFERSCALE_FACTS | INFERSCALE_TURNS, 100, as_of);
    size_t n = l->n;

    inferscale_list_free(l);
    return n;
}

inferscale_status forget_proving(inferscale *is, int64_t id, inferscale_forget_report *r)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;

    o.prove = 1;
    o.wait_ms = 500;
    return inferscale_forget_with(is, &anna, &id, 1, &o, r);
}

/* Is the text in any file of the store? */
static const char *sought;
static bool seen_on_disk;
static int look_at(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    FILE *file;
    char *bytes;

    (void)f;
    if (flag != FTW_F || sb->st_size == 0) return 0;
    file = fopen(path, "rb");
    bytes = malloc((size_t)sb->st_size);
    if (!file || !bytes || fread(bytes, 1, (size_t)sb->st_size, file) != (size_t)sb->st_size) _exit(2);
    if (memmem(bytes, (size_t)sb->st_size, sought, strlen(sought))) seen_on_disk = true;
    free(bytes);
    fclose(file);
    return 0;
}

/* In a child: closing the bank's files here would drop SQLite's locks on them. */
bool forget_on_disk(const char *text)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        sought = text;
        _exit(nftw(forget_home, look_at, 16, FTW_PHYS) != 0 ? 2 : seen_on_disk);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}
