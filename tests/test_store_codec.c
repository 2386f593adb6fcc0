/* What must hold of a store's codec: it is the one that was named last, whoever named it; a program that names none uses it; a
 * change is told once; and a program that runs already goes over to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/store_codec.h"
#include "kv/segment.h"
#include "support/background_kit.h"
#include "support/program.h"
#include "support/scratch.h"

static unsigned told; /* messages that rows change their codec */

static void on_log(void *ctx, int level, const char *message)
{
    (void)ctx;
    (void)level;
    if (strncmp(message, "rows change their codec: ", 25) == 0) __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
}

static inferscale *open_as(const char *codec, bool background, bool read_only)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = getenv("INFERSCALE_HOME");
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.refine = "none";
    o.codec = codec;
    o.background = background;
    o.read_only = read_only;
    o.on_log = on_log;
    return bg_open(&o);
}

static void expect(const char *named, bool read_only, is_codec want, unsigned messages)
{
    inferscale_model_info m;
    inferscale *is;

    told = 0;
    is = open_as(named, false, read_only);
    OK(inferscale_model(is, &m));
    assert_int_equal(is->profile->codec, want);
    assert_memory_equal(is->profile->fingerprint, is->profile->in_codec[want], IS_HASH_BYTES);
    assert_int_equal(told, messages);
    inferscale_close(is);
}

static void the_codec_named_last_is_the_stores(void **state)
{
    (void)state;
    expect(NULL, false, IS_CODEC_F16, 0); /* the mock's default */
    expect("f32", false, IS_CODEC_F32, 0);
    expect(NULL, false, IS_CODEC_F32, 0);
    expect("", false, IS_CODEC_F32, 0);
    expect("f32", false, IS_CODEC_F32, 0);
    expect("int8", false, IS_CODEC_INT8, 1);
    expect(NULL, false, IS_CODEC_INT8, 0);
    expect("bf16", true, IS_CODEC_BF16, 0); /* it may not write: its own alone */
    expect(NULL, true, IS_CODEC_INT8, 0);
    expect("auto", false, IS_CODEC_F16, 1);
    expect(NULL, false, IS_CODEC_F16, 0);
    expect("default", false, IS_CODEC_F16, 1);
    expect("int8", false, IS_CODEC_INT8, 0); /* none was named for it: nothing that anybody chose is lost */
}

static void a_name_that_is_none_is_refused(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    (void)state;
    expect("f32", false, IS_CODEC_F32, 0);
    o.home = getenv("INFERSCALE_HOME");
    o.codec = "f61";
    assert_int_equal(inferscale_open(&is, &o), INFERSCALE_E_INVALID);
    expect(NULL, false, IS_CODEC_F32, 0);
}

/* In the vault, by codec; false: there are others. */
static bool all_in(is_codec codec, size_t want)
{
    size_t n = 0, n_files = 0;
    char **files = store_files(getenv("INFERSCALE_HOME"), ".seg", &n_files);

    for (size_t i = 0; i < n_files; i++) {
        is_segment *s = NULL;

        if (is_segment_read(is_fs_posix(), files[i], &s) == INFERSCALE_OK) n += is_segment_info(s)->codec == codec;
        is_segment_unref(s);
    }
    store_files_free(files, n_files);
    return n == want && n_files == want;
}

static bool injects(inferscale *is)
{
    inferscale_answer *a = NULL;
    bool all;

    OK(inferscale_ask(is, &store_anna, "What does Anna own?", NULL, &a));
    all = a->n_facts == 2 && a->fallbacks == 0 && a->tokens_injected > 0;
    inferscale_answer_free(a);
    return all;
}

/* Two processes: this one runs and is idle; another names a codec, and does nothing else. */
static void a_program_that_runs_follows(void **state)
{
    static const struct { const char *name; is_codec codec; } turns[] = {
        { "f32", IS_CODEC_F32 }, { "bf16", IS_CODEC_BF16 }, { "f32", IS_CODEC_F32 }, { "f16", IS_CODEC_F16 },
    };
    inferscale *is = open_as(NULL, true, false);
    size_t n_done = 0;

    (void)state;
    store_fact(is, &store_anna, "Anna owns a boat.");
    store_fact(is, &store_anna, "Anna owns a bike.");
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(all_in(IS_CODEC_F16, 2));
    told = 0;
    for (; n_done < sizeof turns / sizeof *turns; n_done++) {
        sh("$IS ls --user anna --json && $IS remember 'It rains.' --user ben --later --engine mock --codec %s && "
           "$IS forget --user ben --all --yes", turns[n_done].name);
        expect_code(0);
        UNTIL(all_in(turns[n_done].codec, 2));
        UNTIL(injects(is));
    }
    assert_int_equal(told, n_done);
    inferscale_close(is);
    store_expect_sound(getenv("INFERSCALE_HOME"));
}

/* A handle without a background encoder goes over when it encodes. */
static void encoding_goes_by_the_stores_codec(void **state)
{
    inferscale *is = open_as(NULL, false, false);

    (void)state;
    store_fact(is, &store_anna, "Anna owns a boat.");
    store_fact(is, &store_anna, "Anna owns a bike.");
    OK(inferscale_encode(is, &store_anna, NULL));
    assert_true(all_in(IS_CODEC_F16, 2));
    sh("$IS encode --user anna --engine mock --refine none --codec int8");
    expect_code(0);
    OK(inferscale_encode(is, &store_anna, NULL));
    assert_int_equal(is_handle_profile(is)->codec, IS_CODEC_INT8);
    assert_true(injects(is));
    inferscale_close(is);
}

/* What the program says and prints. */
static void the_program_tells_it_once(void **state)
{
    (void)state;
    sh("$IS remember 'Anna owns a boat.' --engine mock --codec f32 && $IS encode --engine mock");
    expect_code(0);
    assert_string_equal(last.err, "");
    sh("INFERSCALE_CODEC=f16 $IS remember 'Anna owns a bike.' --engine mock --later --json");
    expect_in(last.err, "rows change their codec: it was f32 and is f16 from now on");
    sh("$IS ask 'What does Anna own?' --engine mock --json");
    expect_in(text_at("fallback"), "1 of them have it in f32, and the store is to hold f16");
    sh("$IS doctor --engine mock");
    expect_in(last.out, "f16; 1 segment in f32, which answers do not use until `inferscale encode` brings them into f16");
    sh("$IS du --json");
    assert_true(json_is_null(json_object_get(last.json, "wide_bytes")));
    sh("$IS du --json --current --engine mock");
    assert_true(number_at("wide_bytes") > 0);
    sh("$IS encode --engine mock --json");
    assert_string_equal(last.err, "");
    assert_int_equal(number_at("segments_rounded"), 1);
    sh("$IS encode --engine mock --codec f16 --json");
    assert_string_equal(last.err, "");
    assert_int_equal(number_at("segments_rounded"), 0);
    sh("$IS ask 'What does Anna own?' --engine mock --json");
    assert_string_equal(text_at("fallback"), "");
    sh("$IS doctor --engine mock");
    expect_in(last.out, "f16, as it was named");
}

static int find_all(void **state)
{
    return bg_find_plugins(state) || program_set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_codec_named_last_is_the_stores, program_fresh),
        cmocka_unit_test_setup(a_name_that_is_none_is_refused, program_fresh),
        cmocka_unit_test_setup(a_program_that_runs_follows, program_fresh),
        cmocka_unit_test_setup(encoding_goes_by_the_stores_codec, program_fresh),
        cmocka_unit_test_setup(the_program_tells_it_once, program_fresh),
    };
    return cmocka_run_group_tests(tests, find_all, program_tear_down);
}
