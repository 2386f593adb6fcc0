#include "support/background_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"

char bg_plugins[1024];
char *bg_home;

int bg_find_plugins(void **state)
{
    ssize_t len = readlink("/proc/self/exe", bg_plugins, sizeof bg_plugins - 1);

    if (len < 0) return -1;
    bg_plugins[len] = 0;
    *strrchr(bg_plugins, '/') = 0;
    *strrchr(bg_plugins, '/') = 0;
    return 0;
}

int bg_set_up(void **state)
{
    bg_home = scratch_make();
    return 0;
}

int bg_tear_down(void **state)
{
    scratch_remove(bg_home);
    return 0;
}

inferscale_options bg_options(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = bg_home;
    o.engine = "mock";
    o.model = model;
    o.embedder = "mock"; /* as fast as it is, whatever the model's options say */
    o.plugin_dir = bg_plugins;
    o.policy = "facts:2";
    o.refine = "none";
    o.background = 1;
    o.encode_lag_s = -1; /* no share: what holds the gate holds the encoder, however slow the machine */
    return o;
}

inferscale *bg_open(const inferscale_options *o)
{
    inferscale *is = NULL;

    OK(inferscale_open(&is, o));
    return is;
}

inferscale *bg_open_plain(void)
{
    inferscale_options o = bg_options("mock");

    return bg_open(&o);
}

inferscale_status bg_tell(inferscale *is, const inferscale_scope *who, int n, int64_t *id)
{
    char text[96];
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    inferscale_event e = { 0 };
    inferscale_status st;

    snprintf(text, sizeof text, "%s owns thing number %d, which is blue.", who->user, n);
    st = inferscale_remember(is, who, &f, 1, &e);
    if (id) *id = e.id;
    return st;
}

void bg_tell_many(inferscale *is, const inferscale_scope *who, int from, int n)
{
    for (int i = 0; i < n; i++) OK(bg_tell(is, who, from + i, NULL));
}

inferscale_encoder_state bg_state(inferscale *is, const inferscale_scope *who)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    OK(inferscale_encode_status(is, who, &s));
    return s;
}

/* How many facts of the owner have KV for the model that is loaded. */
size_t bg_ready(inferscale *is, const inferscale_scope *who, size_t *n)
{
    inferscale_model_info m;
    inferscale_list *l = NULL;
    size_t sum = 0;

    OK(inferscale_model(is, &m));
    OK(inferscale_ls(is, who, INFERSCALE_FACTS, 0, 0, &l));
    for (size_t i = 0; i < l->n; i++) sum += l->items[i].kv_ready != 0;
    *n = l->n;
    inferscale_list_free(l);
    return sum;
}

void bg_expect_ready(inferscale *is, const inferscale_scope *who, size_t want)
{
    size_t n;

    assert_int_equal(bg_ready(is, who, &n), want);
    assert_int_equal(n, want);
}
