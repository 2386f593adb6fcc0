/* serve_config.c - settings of the server from flags, environment and file, and `inferscale config check`, which shows them. */
#include "cli/serve_config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/nearest_name.h"
#include "cli/args.h"
#include "cli/help.h"
#include "cli/out.h"
#include "serve/keys.h"

const cli_option serve_options[] = {
    { "--config", "FILE", "settings as `name = value` lines (default: $INFERSCALE_CONFIG)" },
#define IS_X(field, flag, kind, arg, fallback, min, max, choices, help) { "--" flag, arg, help " (default: " fallback ")" },
#define IS_Y(field, flag, kind, arg, fallback, min, max, choices, help) { "--" flag, arg, help },
    IS_CONFIG_MAP(IS_X, IS_Y)
#undef IS_X
#undef IS_Y
        { NULL, NULL, NULL },
};

const char *serve_config_path(const cli_args *a)
{
    const char *file = cli_str(a, "--config", getenv("INFERSCALE_CONFIG"));
    return file && *file ? file : NULL;
}

static is_status read_flags(const cli_args *a, is_config *c, is_config_error on_error, void *ctx)
{
    is_status first = INFERSCALE_OK;
    char sentence[1200], why[1200] = "";
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        const cli_option *o = &serve_options[i + 1];
        const char *v = o->arg ? cli_str(a, o->name, NULL) : cli_flag(a, o->name) ? "on" : NULL;
        if (!v) continue;
        is_status st = is_config_set(c, is_config_name((enum is_setting_id)i), v, IS_BY_FLAG, 0);
        if (st == INFERSCALE_OK) continue;
        snprintf(sentence, sizeof sentence, "%s: %s", o->name, inferscale_error());
        if (on_error) on_error(ctx, sentence);
        if (first == INFERSCALE_OK) snprintf(why, sizeof why, "%s", sentence);
        if (first == INFERSCALE_OK) first = st;
    }
    return first == INFERSCALE_OK ? first : is_fail(first, "%s", why);
}

is_status serve_config_read(const cli_args *a, const char *path, is_config *c, is_config_error on_error, void *ctx)
{
    char first[1024] = "";
    is_status st = INFERSCALE_OK, each[4] = { 0 };
    for (int i = 0; i < 4; i++) {
        each[i] = i == 0   ? (path ? is_config_file(c, path, on_error, ctx) : INFERSCALE_OK)
                  : i == 1 ? is_config_environment(c, environ, on_error, ctx)
                  : i == 2 ? read_flags(a, c, on_error, ctx)
                           : is_config_check(c, on_error, ctx);
        if (each[i] == INFERSCALE_OK || st != INFERSCALE_OK) continue;
        st = each[i];
        snprintf(first, sizeof first, "%s", inferscale_error());
    }
    return st == INFERSCALE_OK ? st : is_fail(st, "%s", first);
}

/* ---- config check -------------------------------------------------------------------------------------------------------- */

typedef struct check {
    json_t *errors, *notes;
} check;

static void keep(void *ctx, const char *sentence)
{
    check *k = ctx;
    json_array_append_new(k->errors, cli_json_text(sentence));
}

/* A variable whose name is nearly a setting's sets nothing: INFERSCALE_PROT. */
static void odd_variables(check *k)
{
    static char names[IS_N_SETTINGS][64];
    const char *list[IS_N_SETTINGS + 16];
    size_t n = 0;
    for (; n < IS_N_SETTINGS; n++) {
        snprintf(names[n], sizeof names[n], "INFERSCALE_%s", is_config_name((enum is_setting_id)n));
        for (char *p = names[n]; *p; p++) *p = *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
        list[n] = names[n];
    }
    for (const cli_env *e = cli_environment; e->name && n < sizeof list / sizeof *list; e++) list[n++] = e->name;
    for (char **e = environ; *e; e++) {
        char name[41], text[160];
        size_t len = strcspn(*e, "=");
        if (strncmp(*e, "INFERSCALE_", 11) != 0 || len >= sizeof name) continue;
        memcpy(name, *e, len);
        name[len] = '\0';
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) known = strcmp(list[i], name) == 0;
        const char *near = known ? NULL : is_nearest_name(name + 11, list, 0);
        for (size_t i = 0; i < n && !known && !near; i++) {
            const char *one = list[i] + (strncmp(list[i], "INFERSCALE_", 11) == 0 ? 11 : 0);
            if (is_nearest_name(name + 11, &one, 1)) near = list[i];
        }
        if (!near || strlen(name) - 11 < 3) continue;
        snprintf(text, sizeof text, "%s sets nothing; did you mean %s?", name, near);
        json_array_append_new(k->notes, cli_json_text(text));
    }
}

static void check_files(const is_config *c, check *k)
{
    is_keys *keys = NULL;
    const char *const files[] = { c->tls_cert, c->tls_key };
    char text[1200];
    if (*c->keys && is_keys_open(c->keys, &keys) != INFERSCALE_OK) keep(k, inferscale_error());
    is_keys_close(keys);
    for (size_t i = 0; i < 2; i++) {
        if (!*files[i] || access(files[i], R_OK) == 0) continue;
        snprintf(text, sizeof text, "%s cannot be read; check its name and who may read it", files[i]);
        keep(k, text);
    }
}

static json_t *setting(const is_config *c, enum is_setting_id i)
{
    static const char *const by[] = { "default", "file", "environment", "flag" };
    char *v = is_config_value(c, i);
    json_t *o = json_pack("{s:s,s:o,s:s}", "name", is_config_name(i), "value",
                          cli_json_text(!v                          ? ""
                                        : is_config_secret(i) && *v ? "(set)"
                                                                    : v),
                          "from", by[c->from[i].by]);
    if (c->from[i].by == IS_BY_FILE) json_object_set_new(o, "line", json_integer(c->from[i].line));
    is_free(v);
    return o;
}

static void print_text(json_t *settings, const char *path, const check *k)
{
    size_t i;
    json_t *o;
    json_array_foreach(settings, i, o)
    {
        const char *value = json_string_value(json_object_get(o, "value")),
                   *from = json_string_value(json_object_get(o, "from"));
        printf("%-16s = ", json_string_value(json_object_get(o, "name")));
        int used = cli_put_cut(stdout, value, 60);
        if (strcmp(from, "default") != 0) {
            cli_put_pad(stdout, used < 24 ? 24 - used : 1);
            printf("%s# %s", cli_on(CLI_DIM), from);
            if (strcmp(from, "file") == 0)
                printf(" %s, line %lld", path, (long long)json_integer_value(json_object_get(o, "line")));
            printf("%s", cli_off());
        }
        printf("\n");
    }
    if (!cli_printed()) return;
    json_array_foreach(k->notes, i, o) fprintf(stderr, "Note: %s\n", json_string_value(o));
    json_array_foreach(k->errors, i, o) fprintf(stderr, "Error: %s\n", json_string_value(o));
    if (json_array_size(k->errors) == 0) fprintf(stderr, "All settings are right.\n");
}

static int cmd_config_check(const cli_args *a)
{
    is_config c;
    check k = { json_array(), json_array() };
    json_t *settings = json_array();
    const char *path = cli_n(a) ? cli_at(a, 0) : serve_config_path(a);
    if (cli_n(a) > 1) return cli_usage(a, "takes one file");
    if (cli_n(a) && cli_str(a, "--config", NULL)) return cli_usage(a, "takes the file as argument or by --config, not both");
    if (is_config_init(&c) != INFERSCALE_OK) return cli_fail(a);
    serve_config_read(a, path, &c, keep, &k);
    check_files(&c, &k);
    odd_variables(&k);
    for (int i = 0; i < IS_N_SETTINGS; i++) json_array_append_new(settings, setting(&c, (enum is_setting_id)i));
    bool ok = json_array_size(k.errors) == 0;
    if (cli_wants_json(a)) {
        cli_print_json(json_pack("{s:b,s:s?,s:o,s:o,s:o}", "ok", ok, "file", path, "settings", settings, "errors", k.errors,
                                 "notes", k.notes));
    } else {
        print_text(settings, path ? path : "", &k);
        json_decref(settings);
        json_decref(k.errors);
        json_decref(k.notes);
    }
    is_config_free(&c);
    return ok ? CLI_OK : CLI_FAILED;
}

const cli_verb cli_verb_config_check = {
    "config check",
    "[FILE]",
    "Show the server's settings and where each comes from, and everything that is wrong with them",
    "Settings of `inferscale serve` come from flags, else from variables (INFERSCALE_NAME), else from the file that --config "
    "or "
    "INFERSCALE_CONFIG names, else from the table of defaults. A file has lines `name = value`; # begins a comment line; "
    "quotes keep blanks, and "
    "\\n in them is a line end. All errors are shown, not only the first; the exit code is 1 if there are any.\n\n"
    "Examples:\n  inferscale config check /etc/inferscale/inferscale.conf\n  inferscale config check --port 9000 --json\n",
    serve_options,
    CLI_JSON,
    cmd_config_check,
};
