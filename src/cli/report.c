/* report.c - results and errors as JSON or as sentences. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/out.h"
#include "exchange/json.h"

json_t *cli_json_text(const char *s) { return is_json_text(s); }
json_t *cli_json_time(int64_t epoch) { return is_json_time(epoch); }

int cli_print_json(json_t *object)
{
    if (!object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0) {
        if (!ferror(stdout)) fprintf(stderr, "inferscale: the result could not be written as JSON; is there memory left?\n");
        json_decref(object);
        return 0;
    }
    json_decref(object);
    fputc('\n', stdout);
    fflush(stdout);
    return 0;
}

/* extra is stolen. */
static void print_error(const char *verb, bool json, const char *code, const char *message, json_t *extra)
{
    fflush(stdout);
    if (cli_reader_left()) {
        json_decref(extra);
        return;
    }
    fprintf(stderr, "inferscale%s%s: ", verb[0] ? " " : "", verb);
    cli_put_text(stderr, message, true);
    fputc('\n', stderr);
    if (json) {
        json_t *o = json_pack("{s:{s:s,s:o}}", "error", "code", code, "message", cli_json_text(message));
        if (extra) json_object_update(o, extra);
        cli_print_json(o);
    }
    json_decref(extra);
}

int cli_usage_at(const char *verb, bool json, const char *message)
{
    print_error(verb, json, "USAGE", message, NULL);
    fprintf(stderr, "See: inferscale %s%s--help\n", verb, verb[0] ? " " : "");
    return CLI_USAGE;
}

int cli_usage(const cli_args *a, const char *fmt, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return cli_usage_at(cli_current(a)->name, cli_wants_json(a), message);
}

int cli_fail_msg(const cli_args *a, const char *fmt, ...)
{
    char message[1400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    print_error(cli_current(a)->name, cli_wants_json(a), "FAILED", message, NULL);
    return CLI_FAILED;
}

int cli_fail_with(const cli_args *a, const char *code, json_t *extra, const char *fmt, ...)
{
    char message[1600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    print_error(cli_current(a)->name, cli_wants_json(a), code, message, extra);
    return CLI_FAILED;
}

static const char *last_error(void)
{
    const char *s = inferscale_error();
    return s && *s ? s : "failed without saying why; run `inferscale doctor`";
}

int cli_fail(const cli_args *a)
{
    print_error(cli_current(a)->name, cli_wants_json(a), "FAILED", last_error(), NULL);
    return CLI_FAILED;
}

int cli_fail_as(const cli_args *a, inferscale_status status)
{
    print_error(cli_current(a)->name, cli_wants_json(a), inferscale_status_name(status), last_error(), NULL);
    return CLI_FAILED;
}

#ifndef IS_COMMIT
#define IS_COMMIT "unknown" /* the Makefile may say it */
#endif

const char *cli_model_shown(const inferscale_model_info *info, char out[192])
{
    const char *file = strrchr(info->path, '/');
    size_t n;
    file = file ? file + 1 : info->path;
    n = strlen(file);
    if (n > 5 && strcmp(file + n - 5, ".gguf") == 0) n -= 5;
    if (n == 0 || (strlen(info->name) == n && strncmp(info->name, file, n) == 0))
        snprintf(out, 192, "%s", info->name);
    else
        snprintf(out, 192, "%s (%.*s)", info->name, (int)(n < 60 ? n : 60), file);
    return out;
}

json_t *cli_report(const inferscale_model_info *info, uint64_t seed)
{
    char cpu[64], machine[192], date[32], shown[192], cores[64];
    struct utsname u;
    is_cpu_model(cpu);
    if (uname(&u) != 0) memset(&u, 0, sizeof u);
    snprintf(machine, sizeof machine, "%s, %s, %s, %s", cpu, cli_n_of(is_cpu_physical_cores(), "core", cores), is_cpu_simd_name(is_cpu_simd()),
             u.sysname);
    is_date_iso(is_now_epoch(), date);
    return json_pack("{s:o,s:o,s:o,s:s,s:s,s:I,s:[]}", "machine", cli_json_text(machine), "model",
                     cli_json_text(info ? cli_model_shown(info, shown) : NULL), "weights", cli_json_text(info ? info->weights : NULL), "commit",
                     IS_COMMIT, "date", date, "seed", (json_int_t)seed, "rows");
}
