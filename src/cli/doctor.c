/* doctor.c - `inferscale doctor`: what is there, what works, what to do about the rest. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/store_codec.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/encode_status.h"
#include "cli/out.h"
#include "cli/tempstore.h"
#include "serve/extract.h"
#include "serve/upstreams.h"

enum { UPSTREAM_MS = 2000 };

typedef enum mark { OK, WARN, BAD } mark;

typedef struct visit {
    const cli_args *a;
    json_t *checks;
    bool failed;
} visit;

static void say(visit *v, const char *name, mark m, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void say(visit *v, const char *name, mark m, const char *fmt, ...)
{
    static const char *const words[] = { "ok", "warning", "failed" };
    static const char *const marks[] = { "\xe2\x9c\x93", "!", "\xe2\x9c\x97" };
    static const cli_style styles[] = { CLI_GREEN, CLI_YELLOW, CLI_RED };
    char text[1400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (m == BAD) v->failed = true;
    json_array_append_new(v->checks,
                          json_pack("{s:s,s:s,s:o}", "name", name, "result", words[m], "detail", cli_json_text(text)));
    if (cli_wants_json(v->a)) return;
    printf("%s%s%s  %-16s ", cli_on(styles[m]), marks[m], cli_off(), name);
    cli_put_wrapped(stdout, text, cli_columns() ? cli_columns() : 0, 20);
    fflush(stdout);
}

static void check_cpu(visit *v, json_t *report)
{
    char cpu[64], cores[64];
    is_cpu_model(cpu);
    say(v, "CPU", is_cpu_simd() == IS_SIMD_SCALAR ? WARN : OK, "%s, %s, kernels use %s%s", cpu,
        cli_n_of(is_cpu_physical_cores(), "core", cores),
        is_cpu_simd_name(is_cpu_simd()), is_cpu_simd() == IS_SIMD_SCALAR ? "; a CPU with AVX2 is several times faster" : "");
    json_object_set_new(report, "cpu",
                        json_pack("{s:o,s:I,s:s}", "model", cli_json_text(cpu), "cores", (json_int_t)is_cpu_physical_cores(),
                                  "simd", is_cpu_simd_name(is_cpu_simd())));
}

static void check_store(visit *v, inferscale *is, json_t *report)
{
    inferscale_store_info s;
    inferscale_status st = inferscale_store(is, 1, &s);
    char bank[32], vault[32], ram[32], facts[64], turns[64], owners[64], segments[64];
    if (st != INFERSCALE_OK) {
        say(v, "store", BAD, "%s", inferscale_error());
        return;
    }
    cli_size(s.bank_bytes, bank);
    cli_size(s.vault_bytes, vault);
    cli_size(s.ram_bytes_budget, ram);
    cli_n_of(s.n_facts, "fact", facts);
    cli_n_of(s.n_turns, "turn", turns);
    cli_n_of(s.n_partitions, "owner", owners);
    cli_n_of(s.n_segments, "segment", segments);
    say(v, "store", OK, "%s", s.home);
    say(v, "bank", s.sqlite_ok ? OK : BAD,
        s.sqlite_ok ? "%s and %s of %s; %s; schema %d; quick check passed"
                    : "%s and %s of %s; %s; schema %d; the quick check FAILED: export what can "
                      "be read, and restore a backup",
        facts, turns, owners, bank, s.schema_version);
    say(v, "vault", OK, "%s, %s; up to %s of them in memory", segments, vault, ram);
    json_object_set_new(report, "store",
                        json_pack("{s:o,s:i,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "home", cli_json_text(s.home), "schema_version",
                                  s.schema_version, "quick_check", s.sqlite_ok, "partitions", (json_int_t)s.n_partitions,
                                  "facts", (json_int_t)s.n_facts, "turns", (json_int_t)s.n_turns, "embedded",
                                  (json_int_t)s.n_embedded, "segments", (json_int_t)s.n_segments, "bank_bytes",
                                  (json_int_t)s.bank_bytes, "vault_bytes", (json_int_t)s.vault_bytes));
}

/* A search by meaning makes the embedder load: in a store of its own, so that nothing is written to the real one. */
static inferscale_status try_embedder(const inferscale_options *options, inferscale_store_info *info, double *ms)
{
    inferscale_scope scope = { .user = "doctor" };
    inferscale_fact fact = { .text = "The embedder works." };
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *list = NULL;
    cli_tempstore t;
    inferscale_status st = cli_tempstore_open(options, &t);
    o.method = INFERSCALE_DENSE;
    o.k = 1;
    if (st != INFERSCALE_OK) return st;
    st = inferscale_remember(t.is, &scope, &fact, 1, NULL);
    for (int i = 0; i < 2 && st == INFERSCALE_OK; i++) { /* the second one is the embedder's speed */
        st = inferscale_recall(t.is, &scope, "Does the embedder work?", &o, &list);
        if (st == INFERSCALE_OK) *ms = list->embed_ms;
        inferscale_list_free(list);
        list = NULL;
    }
    if (st == INFERSCALE_OK) st = inferscale_store(t.is, 0, info);
    cli_tempstore_close(&t);
    return st;
}

static void check_embedder(visit *v, inferscale *is, const inferscale_options *options, json_t *report)
{
    inferscale_encoder_state e = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_store_info s;
    double ms = 0;
    inferscale_status st = try_embedder(options, &s, &ms);
    if (st != INFERSCALE_OK) {
        say(v, "embedder", BAD, "%s", inferscale_error());
        return;
    }
    say(v, "embedder", OK, "%s, %.1f ms a question", s.embedder, ms);
    json_object_set_new(report, "embedder",
                        json_pack("{s:o,s:o,s:f}", "name", cli_json_text(s.embedder), "fingerprint",
                                  cli_json_text(s.embedder_fingerprint), "ms", ms));
    if (inferscale_encode_status(is, NULL, &e) == INFERSCALE_OK && e.n_unembedded)
        say(v, "embeddings", WARN, "%llu item%s no embedding yet; `inferscale encode` makes %s",
            (unsigned long long)e.n_unembedded, e.n_unembedded == 1 ? " has" : "s have",
            e.n_unembedded == 1 ? "it" : "them");
}

static json_t *model_json(const inferscale_model_info *m)
{
    char shown[192];
    json_t *o = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:b,s:b,s:o}", "name", cli_json_text(m->name), "shown",
                          cli_json_text(cli_model_shown(m, shown)), "arch",
                          cli_json_text(m->arch), "weights", cli_json_text(m->weights), "path", cli_json_text(m->path),
                          "engine", cli_json_text(m->engine), "fingerprint", cli_json_text(m->fingerprint), "can_inject",
                          m->can_inject, "flash_attention", m->flash_attention, "why_not", cli_json_text(m->why_not));
    const struct { const char *name; uint64_t v; } counts[] = {
        { "params", m->n_params },       { "layers", m->n_layers },
        { "planes", m->n_planes },       { "ctx", m->n_ctx },
        { "ctx_train", m->n_ctx_train }, { "vocab", m->n_vocab },
        { "threads", m->n_threads },     { "kv_bytes_per_token", m->kv_bytes_per_token },
    };
    const struct { const char *name; double v; } numbers[] = {
        { "fa_on_ms", m->fa_on_ms },
        { "fa_off_ms", m->fa_off_ms },
        { "selftest_kl", m->selftest_kl },
        { "selftest_noise", m->selftest_noise },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(o, counts[i].name, json_integer((json_int_t)counts[i].v));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, json_real(numbers[i].v));
    return o;
}

static void check_model(visit *v, inferscale *is, json_t *report)
{
    inferscale_model_info m;
    inferscale_status st = is_handle_engine_within(is, UPSTREAM_MS); /* who asks what is wrong does not wait for it to mend itself */
    bool remote;
    char params[32], kv[32], threads[64], layers[64], planes[64], shown[192];
    if (st == INFERSCALE_OK) st = inferscale_model(is, &m);
    if (st != INFERSCALE_OK) {
        say(v, "model", BAD, "%s", inferscale_error());
        return;
    }
    remote = is_engine_describe(is_handle_engine_if_loaded(is))->remote;
    cli_count(m.n_params, params);
    cli_size(m.kv_bytes_per_token, kv);
    say(v, "engine", OK, "%s, %s", m.engine, cli_n_of(m.n_threads, "thread", threads));
    say(v, "model", OK, "%s, %s, %s weights, %s parameters, context %u of %u", cli_model_shown(&m, shown), m.arch, m.weights, params, m.n_ctx,
        m.n_ctx_train);
    if (m.path[0]) say(v, "file", OK, "%s", m.path);
    if (m.can_inject) {
        say(v, "geometry", OK, "%s, %s, %s of keys and values a token", cli_n_of(m.n_layers, "layer", layers),
            cli_n_of(m.n_planes, "plane", planes), kv);
        if (m.selftest_noise > 0 || m.selftest_kl > 0)
            say(v, "self-test", OK, "injected against prefill: KL %.2g (the same text in other batches: %.2g)", m.selftest_kl,
                m.selftest_noise);
        else if (!remote)
            say(v, "self-test", OK, "injected equals prefill");
    } else {
        say(v, "injection", WARN, "not possible: %s; memory is served as text", m.why_not);
    }
    if (remote) { /* its own business */
        json_object_set_new(report, "model", model_json(&m));
        return;
    }
    if (m.fa_on_ms > 0 || m.fa_off_ms > 0)
        say(v, "flash attention", OK, "%s: measured %.1f ms with it, %.1f ms without", m.flash_attention ? "on" : "off",
            m.fa_on_ms, m.fa_off_ms);
    else
        say(v, "flash attention", OK, "%s (not measured)", m.flash_attention ? "on" : "off");
    json_object_set_new(report, "model", model_json(&m));
}

/* Where the engine computes elsewhere: who does, and what it can do. One that is down is no failure while another is up. */
static void check_upstreams(visit *v, inferscale *is, json_t *report)
{
    size_t n, n_up = 0;
    is_upstream *list = is_upstreams_of(is, &n);

    for (size_t i = 0; list && i < n; i++) n_up += list[i].up;
    for (size_t i = 0; list && i < n; i++) {
        const is_upstream *u = &list[i];
        char hex[IS_HASH_HEX];

        is_hex(u->fingerprint, IS_HASH_BYTES, hex);
        if (!u->up) say(v, "upstream", n_up ? WARN : BAD, "%s is not up: %s", u->url, u->why);
        else if (!u->can_inject) say(v, "upstream", WARN, "%s, %s: %s, nothing can be injected: %s", u->url, u->version, u->model, u->why);
        else say(v, "upstream", OK, "%s, %s: %s, fingerprint %.16s, stored rows can be injected", u->url, u->version, u->model, hex);
    }
    if (list) json_object_set_new(report, "upstreams", is_upstreams_json(list, n));
    is_free(list);
}

/* After the model is loaded, so that it is its KV that is counted. */
static void check_backlog(visit *v, inferscale *is, json_t *report)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    char facts[64];

    if (inferscale_encode_status(is, NULL, &s) != INFERSCALE_OK) {
        say(v, "backlog", BAD, "%s", inferscale_error());
        return;
    }
    say(v, "backlog", s.n_unencoded ? WARN : OK, "%s %s for KV%s%s", cli_n_of(s.n_unencoded, "fact", facts),
        s.n_unencoded == 1 ? "waits" : "wait", s.model_known ? "" : " of any model",
        s.n_unencoded ? "; `inferscale encode` or a running chat does them" : "");
    json_object_set_new(report, "backlog", cli_encoder_json(&s));
}

/* How rows are stored, and what is stored otherwise. After the model is loaded. */
static void check_codec(visit *v, inferscale *is, json_t *report)
{
    const is_profile *profile = is_handle_profile(is);
    char store[IS_BANK_CODEC_BYTES], n_others[64];
    is_codec codec = IS_CODEC_F32;
    uint64_t n = 0;

    if (!profile || !is_engine_geometry(is->engine)) return;
    is_handle_codec_name(is, store);
    if (is_handle_count_others(is, &n, &codec) != INFERSCALE_OK) {
        say(v, "codec", BAD, "%s", inferscale_error());
        return;
    }
    json_object_set_new(report, "codec", json_string(is_codec_name(profile->codec)));
    if (n)
        say(v, "codec", WARN, "%s; %s in %s, which answers do not use until `inferscale encode` brings them into %s; "
            "or name --codec %s", is_codec_name(profile->codec), cli_n_of(n, "segment", n_others),
            is_codec_name(codec), is_codec_name(profile->codec), is_codec_name(codec));
    else
        say(v, "codec", OK, "%s, %s", is_codec_name(profile->codec),
            !store[0] ? "the default" : strcmp(store, "auto") == 0 ? "as the model holds it" : "as it was named");
}

/* Infer: true is worth something only with a model that finds facts and invents none. Minutes on a large model, so only if asked; the
 * last result is kept, and the server's default follows it. */
static void check_extraction(visit *v, inferscale *is, json_t *report)
{
    const char *key = getenv("INFERSCALE_EXTRACTOR_KEY");
    const is_extractor x = { .is = is, .url = cli_str(v->a, "--extractor", NULL), .model = cli_str(v->a, "--extractor-model", NULL), .key = key };
    const bool now = cli_flag(v->a, "--extract");
    is_extract_test t;
    if (!(x.url && *x.url) && !is_handle_engine_if_loaded(is)) { /* why is said above; it is not waited for once more */
        say(v, "extraction", WARN, "not looked at: there is no model to ask");
        return;
    }
    inferscale_status st = now ? is_extract_selftest(&x, &t) : is_extract_last(&x, &t);

    if (st == INFERSCALE_E_NOTFOUND && !now) {
        say(v, "extraction", OK, "not tested with this model; `inferscale doctor --extract` does. Until it passes, infer is off by default");
        return;
    }
    if (st != INFERSCALE_OK) {
        say(v, "extraction", now ? BAD : WARN, "%s", inferscale_error());
        return;
    }
    say(v, "extraction", t.passed ? OK : WARN, "%s: %d of %d expected facts found in %d dialogues, %d of no use, %d refused by the checks; infer is "
        "%s by default", t.model, t.found, t.expected, t.dialogues, t.junk, t.refused, t.passed ? "on" : "off");
    json_object_set_new(report, "extraction",
                        json_pack("{s:o,s:b,s:i,s:i,s:i,s:i,s:I}", "model", cli_json_text(t.model), "passed", t.passed, "expected", t.expected,
                                  "found", t.found, "junk", t.junk, "refused", t.refused, "time", (json_int_t)t.time));
}

static int cmd_doctor(const cli_args *a)
{
    inferscale_options o;
    inferscale *is = NULL;
    inferscale_status st;
    visit v = { a, json_array(), false };
    json_t *report = json_object();
    if (cli_n(a)) {
        json_decref(report);
        json_decref(v.checks);
        return cli_usage(a, "takes no arguments");
    }
    cli_options(a, &o);
    say(&v, "inferscale", OK, "%s", inferscale_version());
    check_cpu(&v, report);
    st = inferscale_open(&is, &o);
    if (st != INFERSCALE_OK) {
        say(&v, "store", BAD, "%s", inferscale_error());
    } else {
        check_store(&v, is, report);
        check_model(&v, is, report);
        check_upstreams(&v, is, report);
        check_embedder(&v, is, &o, report);
        check_backlog(&v, is, report);
        check_codec(&v, is, report);
        check_extraction(&v, is, report);
    }
    inferscale_close(is);
    json_object_set_new(report, "version", json_string(inferscale_version()));
    json_object_set_new(report, "ok", json_boolean(!v.failed));
    json_object_set_new(report, "checks", v.checks);
    if (cli_wants_json(a))
        cli_print_json(report);
    else
        json_decref(report);
    return v.failed ? CLI_FAILED : CLI_OK;
}

static const cli_option options[] = {
    { "--extract", NULL, "test how well the model extracts facts from conversations (infer: true); minutes on a large model" },
    { "--extractor", "URL", "with an OpenAI endpoint instead of the model, as serve --extractor; key: $INFERSCALE_EXTRACTOR_KEY" },
    { "--extractor-model", "NAME", "its model" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_doctor = {
    "doctor", "", "Check CPU, engine, model, self-test and store",
    "Exit code 1 if a check failed.\n\nExamples:\n  inferscale doctor\n  inferscale doctor --engine vllm --upstream http://127.0.0.1:8000\n"
    "  inferscale doctor --model qwen.gguf --json\n"
    "  inferscale doctor --model qwen.gguf --extract\n", options,
    CLI_STORE | CLI_MODEL | CLI_JSON, cmd_doctor,
};
