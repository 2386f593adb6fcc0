/* What every default resolves to, that the codec `auto` is the type of the engine's cache, and that the default is int8 where rows serve
 * users: changing one is to be a decision, not a slip. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/answer.h"
#include "serve/config.h"
#include "support/background_kit.h"
#include "support/scratch.h"
#include "support/vllm_fake.h"

static inferscale *open_with(const char *codec)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = bg_home;
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.codec = codec;
    return bg_open(&o);
}

static void a_handle_without_options(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_ask_options none = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_model_info m;
    is_asking a;

    OK(inferscale_model(is, &m));
    assert_int_equal(is->profile->codec, IS_CODEC_F16);
    assert_string_equal(is->policy.name, "page:16/6");
    assert_true(is->has_refine);
    assert_string_equal(is->refine.name, "company:10");
    assert_null(is->background);
    assert_false(is->read_only);
    OK(is_asking_begin(&a, is, &anna, "Who?", &none));
    assert_int_equal(a.o.mode, INFERSCALE_MODE_KV);
    assert_int_equal(a.o.k, 10);
    assert_int_equal(a.o.max_tokens, 128);
    assert_int_equal(a.o.repair, 0);
    assert_true(a.o.temperature == 0);
    is_asking_free(&a);
    inferscale_close(is);
}

/* The mock's cache is f16, that of the one that computes elsewhere bf16. */
static void auto_is_the_type_of_the_cache(void **state)
{
    static const struct { const char *options, *codec; is_codec want; } cases[] = {
        { "", NULL, IS_CODEC_F16 },          { "", "auto", IS_CODEC_F16 },  { "remote", NULL, IS_CODEC_BF16 },
        { "remote", "auto", IS_CODEC_BF16 }, { "noinject", NULL, IS_CODEC_F16 }, { "", "f32", IS_CODEC_F32 },
        { "", "bf16", IS_CODEC_BF16 },       { "", "int8", IS_CODEC_INT8 }, { "", "default", IS_CODEC_F16 },
        { "", "int4", IS_CODEC_INT4 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        inferscale_model_info m;
        inferscale *is;

        assert_int_equal(setenv("INFERSCALE_MOCK", cases[i].options, 1), 0);
        is = open_with(cases[i].codec);
        OK(inferscale_model(is, &m));
        assert_int_equal(is->profile->codec, cases[i].want);
        assert_memory_equal(is->profile->fingerprint, is->profile->in_codec[cases[i].want], IS_HASH_BYTES);
        if (m.can_inject) assert_int_equal(m.kv_bytes_per_token, 8 * 2 * is_codec_row_bytes(cases[i].want, 8)); /* 8 planes, 2 heads of 8 */
        inferscale_close(is);
    }
    unsetenv("INFERSCALE_MOCK");
}

/* The same of a vLLM server, whose cache may be of any of the three. Its default is int8. */
static void auto_is_the_type_of_a_servers_cache(void **state)
{
    static const is_codec types[] = { IS_CODEC_F16, IS_CODEC_BF16, IS_CODEC_F32, IS_CODEC_BF16 };
    static const char *const codecs[] = { "auto", "auto", "auto", "default" };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const is_codec want = strcmp(codecs[i], "auto") == 0 ? types[i] : IS_CODEC_INT8;
        inferscale_options o = INFERSCALE_OPTIONS_INIT;
        inferscale_model_info m;
        inferscale *is;
        vllm_fake *f;

        fake_codec = types[i];
        f = fake_start(bg_home);
        o.home = bg_home;
        o.engine = "vllm";
        o.upstream = f->url;
        o.codec = codecs[i];
        o.plugin_dir = bg_plugins;
        is = bg_open(&o);
        OK(inferscale_model(is, &m));
        assert_int_equal(is->profile->codec, want);
        inferscale_close(is);
        fake_stop(f);
    }
    fake_codec = IS_CODEC_BF16;
}

/* From which lag on the background has a share of the engine's time, and how large it is. */
static void the_background_has_its_share(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    is_share_rules r;
    inferscale *is;

    (void)state;
    o.home = bg_home;
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.background = 1;
    is = bg_open(&o);
    is_gate_rules_of(is->gate, &r);
    assert_true(r.limit_ms == 5000 && r.least == 0.1 && r.most == 0.5 && r.slice_ms == 20);
    assert_int_equal(is->n_ctx, 0); /* the model's own: test_engine_basic */
    inferscale_close(is);
    o.encode_lag_s = 0.5;
    o.encode_share = 0.2;
    o.encode_share_most = 0.3;
    is = bg_open(&o);
    is_gate_rules_of(is->gate, &r);
    assert_true(r.limit_ms == 500 && r.least == 0.2 && r.most == 0.3 && r.slice_ms == 20);
    inferscale_close(is);
}

/* The server's settings, as docs/server.md and --help have them: X's and Y's of the table. */
static void settings_of_the_server(void **state)
{
    static const struct { const char *name, *value; } want[] = {
        { "codec", "" }, { "policy", "" }, { "refine", "" }, { "ctx", "0" }, { "threads", "0" }, { "parallel", "4" }, { "ram", "1G" },
        { "k", "10" }, { "mode", "kv" }, { "audit", "0" }, { "host", "127.0.0.1" }, { "port", "8080" }, { "max_connections", "512" },
        { "max_queue", "256" }, { "max_body", "16M" }, { "read_s", "30" }, { "idle_s", "75" }, { "drain_s", "30" }, { "generate_s", "600" },
        { "log", "auto" }, { "read_only", "off" },
        { "question_embed_ms", "50" }, { "encode_lag_s", "5" }, { "encode_share", "0.1" }, { "encode_share_most", "0.5" },
    };
#define IS_X(field, flag, kind, arg, def, min, max, choices, help) { #field, def },
    static const struct { const char *name, *value; } is[] = { IS_CONFIG_MAP(IS_X, IS_X) };
#undef IS_X

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        bool found = false;

        for (size_t k = 0; k < sizeof is / sizeof *is; k++) {
            if (strcmp(is[k].name, want[i].name) != 0) continue;
            found = true;
            assert_string_equal(is[k].value, want[i].value);
        }
        if (!found) fail_msg("there is no setting %s", want[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_handle_without_options, bg_set_up, bg_tear_down),
        cmocka_unit_test_setup_teardown(auto_is_the_type_of_the_cache, bg_set_up, bg_tear_down),
        cmocka_unit_test_setup_teardown(auto_is_the_type_of_a_servers_cache, bg_set_up,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(the_background_has_its_share, bg_set_up, bg_tear_down),
        cmocka_unit_test(settings_of_the_server),
    };

    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
