/* bench_compose.c - the verb `bench compose`: is turning stored rows into cache rows as fast as memory allows? */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/cli.h"
#include "eval/bench_compose.h"
#include "eval/lab.h"

static const cli_option options[] = {
    { "--segments", "N", "facts in the prompt (default: 50)" },
    { "--tokens", "N", "mean tokens of a fact (default: 28)" },
    { "--repeats", "N", "measurements of each arm, at least 11 (default: 21)" },
    { "--seed", "N", "of lengths and rows (default: 1)" },
    { "--engine", "NAME", "engine plug-in: llama (default) or mock" },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Composes the segments of a prompt into an engine's layout, plane by plane: keys rotated,\n"
    "values copied. Beside it, in the same process and interleaved, memcpy moves the rows as they\n"
    "are stored from the same segments to the same places (memcpy; with a narrower codec fewer\n"
    "bytes than are composed, and counted so), and one contiguous block of the same size as what\n"
    "is composed (block: the fastest that this memory can be copied).\n"
    "\n"
    "Rows are written token by token (flash attention); columns are V transposed (without flash\n"
    "attention). k_rows is rotation alone. Without --model the cache is shaped as SmolLM2-135M's\n"
    "and its rows are random; with it the shape is the model's.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench compose --segments 20 --json";

static int print_json(const inferscale_model_info *info, const bench_compose_options *o, const bench_compose_row *rows)
{
    json_t *report = cli_report(info, o->seed), *list = json_object_get(report, "rows");

    if (!info) json_object_set_new(report, "model", json_string("none: random rows of SmolLM2-135M's shape"));
    json_object_set_new(report, "segments", json_integer(o->n_segments));
    json_object_set_new(report, "tokens_mean", json_integer(o->n_tokens));
    json_object_set_new(report, "repeats", json_integer(o->repeats));
    json_object_set_new(
        report, "baselines",
        json_pack(
            "{s:s,s:s}", "memcpy_gbps",
            "the rows as they are stored (memcpy_bytes), from the same segments to the same places",
            "memcpy_block_gbps", "one contiguous block of as many bytes to the same destination"));
    json_object_set_new(report, "clock", json_string("CPU time of the measuring thread, medians"));
    for (int i = 0; i < BENCH_COMPOSE_ROWS; i++) {
        json_t *row = json_pack("{s:s,s:s,s:I,s:f,s:f,s:f,s:s}", "layout", rows[i].layout, "codec", is_codec_name(o->codec),
                                "bytes", (json_int_t)rows[i].bytes, "compose_gbps", rows[i].compose_gbps, "memcpy_gbps",
                                rows[i].memcpy_gbps, "ratio", rows[i].ratio, "simd", is_cpu_simd_name(is_cpu_simd()));

        json_object_set_new(row, "memcpy_bytes", json_integer((json_int_t)rows[i].memcpy_bytes));
        json_object_set_new(row, "memcpy_block_gbps", json_real(rows[i].block_gbps));
        json_object_set_new(row, "ratio_block", json_real(rows[i].ratio_block));
        json_array_append_new(list, row);
    }
    return cli_print_json(report);
}

static int print_table(const bench_compose_row *rows)
{
    printf("%-10s %8s %13s %12s %7s %11s %7s\n", "layout", "MB", "compose GB/s", "memcpy GB/s", "ratio", "block GB/s", "ratio");
    for (int i = 0; i < BENCH_COMPOSE_ROWS; i++)
        printf("%-10s %8.1f %13.2f %12.2f %7.2f %11.2f %7.2f\n", rows[i].layout, (double)rows[i].bytes / 1e6,
               rows[i].compose_gbps, rows[i].memcpy_gbps, rows[i].ratio, rows[i].block_gbps, rows[i].ratio_block);
    return 0;
}

/* The geometry of a real model, from the engine. *l keeps it alive. */
static is_status load_model(const cli_args *a, lab **l, bench_compose_options *o, inferscale_model_info *info)
{
    inferscale_options store;

    cli_options(a, &store);
    store.engine = cli_str(a, "--engine", NULL);
    IS_TRY(lab_open(&store, "bench", l));
    IS_TRY(inferscale_model((*l)->is, info));
    if (!info->can_inject)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "%s cannot be injected (%s); there is nothing to compose for it", info->name,
                       info->why_not);
    IS_TRY(is_handle_engine((*l)->is));
    o->geometry = is_engine_geometry((*l)->is->engine);
    return INFERSCALE_OK;
}

int cmd_bench_compose(const cli_args *a)
{
    bench_compose_options o = {
        .n_segments = (uint32_t)cli_int(a, "--segments", 50, 1, 4096),
        .n_tokens = (uint32_t)cli_int(a, "--tokens", 28, 1, 4096),
        .repeats = (uint32_t)cli_int(a, "--repeats", 21, 11, 1000),
        .seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX),
    };
    bool with_model = cli_str(a, "--model", NULL) != NULL;
    bench_compose_row rows[BENCH_COMPOSE_ROWS];
    inferscale_model_info info = { 0 };
    lab *l = NULL;
    is_status st;
    int code;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    if (is_codec_parse(cli_str(a, "--codec", "f16"), &o.codec) != INFERSCALE_OK) return cli_usage(a, "%s", is_error());
    st = with_model ? load_model(a, &l, &o, &info) : INFERSCALE_OK;
    if (st == INFERSCALE_OK) st = bench_compose(&o, rows);
    code = st != INFERSCALE_OK     ? cli_fail(a)
           : cli_flag(a, "--json") ? print_json(with_model ? &info : NULL, &o, rows)
                                   : print_table(rows);
    lab_close(l);
    return code;
}

const cli_verb cli_verb_bench_compose = {
    "bench compose",   "", "Measure composing stored KV against memcpy", details, options, CLI_MODEL | CLI_JSON,
    cmd_bench_compose,
};
