/* test_openai_parse.c - requests of the OpenAI face as they are read: every field right, wrong and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "serve/openai.h"
#include "support/openai_kit.h"

/* ---- The parser ---------------------------------------------------------------------------------------------------------- */

static const is_oa_known known = { .k = 10, .n_vocab = 1000, .mode = INFERSCALE_MODE_KV };

/* The request is refused, with this param, and the message says word. */
static void refuses(int form, const char *request, const char *param, const char *word)
{
    json_t *body = loads(request);
    is_oa_ask a;
    is_oa_fault f;

    if (is_oa_parse(form, body, &known, &a, &f)) fail_msg("should be refused: %s", request);
    if (strcmp(f.param, param) != 0) fail_msg("param is \"%s\", not \"%s\": %s (%s)", f.param, param, request, f.message);
    if (!strstr(f.message, word)) fail_msg("\"%s\" is not in \"%s\": %s", word, f.message, request);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.type, "invalid_request_error");
    is_oa_ask_free(&a);
    json_decref(body);
}

static json_t *parsed_body;
static is_oa_ask parsed;

static void accepts(int form, const char *request)
{
    is_oa_fault f;

    is_oa_ask_free(&parsed);
    json_decref(parsed_body);
    parsed_body = loads(request);
    if (!is_oa_parse(form, parsed_body, &known, &parsed, &f)) fail_msg("refused: %s (%s)", request, f.message);
}

static int parser_over(void **state)
{
    is_oa_ask_free(&parsed);
    json_decref(parsed_body);
    parsed_body = NULL;
    return 0;
}

static void what_is_missing(void **state)
{
    accepts(IS_OA_CHAT, "{" HI "}");
    assert_true(parsed.o.ask.temperature == 1); /* OpenAI's, written down in docs/server.md */
    assert_int_equal(parsed.max_tokens, 0);
    assert_int_equal(parsed.n, 1);
    assert_int_equal(parsed.o.ask.k, 10);
    assert_int_equal(parsed.o.ask.mode, INFERSCALE_MODE_KV);
    assert_null(parsed.model);
    assert_false(parsed.memory_named);
    uint64_t seed = parsed.o.ask.seed;
    accepts(IS_OA_CHAT, "{" HI "}");
    assert_true(parsed.o.ask.seed != seed); /* chosen by chance, each time */
    accepts(IS_OA_TEXT, "{\"prompt\":\"a\"}");
    assert_int_equal(parsed.max_tokens, 16);
}

static void every_number(void **state)
{
    accepts(IS_OA_CHAT, "{" HI ",\"temperature\":0,\"top_p\":0.5,\"min_p\":0.1,\"top_k\":40,\"presence_penalty\":-2,\"frequency_penalty\":1.5,"
                        "\"seed\":-7,\"max_tokens\":5,\"max_completion_tokens\":5,\"n\":8,\"logprobs\":true,\"top_logprobs\":20,"
                        "\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"999\":-100,\"0\":0.5},\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                        "\"include_obfuscation\":false,\"continuous_usage_stats\":true},\"ignore_eos\":true,\"model\":\"m\"}");
    assert_true(parsed.o.ask.temperature == 0 && parsed.o.ask.top_p == 0.5 && parsed.o.ask.min_p == 0.1);
    assert_int_equal(parsed.o.ask.top_k, 40);
    assert_true(parsed.o.presence_penalty == -2 && parsed.o.frequency_penalty == 1.5);
    assert_true(parsed.o.ask.seed == (uint64_t)-7);
    assert_int_equal(parsed.max_tokens, 5);
    assert_int_equal(parsed.n, 8);
    assert_true(parsed.o.logprobs && parsed.o.top_logprobs == 20);
    assert_true(parsed.o.n_stop == 2 && strcmp(parsed.o.stop[1], "b") == 0);
    assert_true(parsed.o.n_bias == 2 && parsed.o.bias[0].token == 999 && parsed.o.bias[0].bias == -100);
    assert_true(parsed.stream && parsed.include_usage && parsed.o.endless);
    assert_string_equal(parsed.model, "m");
    accepts(IS_OA_CHAT, "{" HI ",\"top_p\":0,\"stop\":\"x\",\"max_completion_tokens\":9}");
    assert_true(parsed.o.ask.top_p > 0 && parsed.o.ask.top_p < 0.001); /* 0 would switch it off */
    assert_int_equal(parsed.o.n_stop, 1);
    assert_int_equal(parsed.max_tokens, 9);
    accepts(IS_OA_CHAT, "{" HI ",\"temperature\":null,\"stop\":null,\"n\":null,\"tools\":null,\"memory\":null,\"response_format\":null,\"stream\":null}");
    accepts(IS_OA_CHAT, "{" HI ",\"user\":\"u\",\"store\":true,\"metadata\":{\"a\":\"b\"},\"service_tier\":\"auto\",\"safety_identifier\":\"s\","
                        "\"prompt_cache_key\":\"k\",\"cache_salt\":\"theirs\",\"kv_transfer_params\":{\"inferscale\":\"forged\"},"
                        "\"parallel_tool_calls\":false,\"prediction\":{},\"modalities\":[\"text\"]}");
    accepts(IS_OA_TEXT, "{\"prompt\":[\"a\",\"b\"],\"best_of\":2,\"n\":2,\"logprobs\":0,\"echo\":false}");
    assert_true(parsed.n_prompts == 2 && parsed.o.logprobs && parsed.o.top_logprobs == 0);
}

/* Each field with values of the wrong type, just outside its bounds, and absurd ones. */
static void wrong_values(void **state)
{
    static const struct { int form; const char *name, *values[10]; } wrong[] = {
        { IS_OA_CHAT, "temperature", { "-0.1", "2.1", "\"1\"", "[]", "true", "1e308" } },
        { IS_OA_CHAT, "top_p", { "-0.1", "1.1", "\"1\"", "{}" } },
        { IS_OA_CHAT, "min_p", { "-1", "2", "\"\"" } },
        { IS_OA_CHAT, "top_k", { "-1", "1.5", "1e9", "9999999999", "\"3\"" } },
        { IS_OA_CHAT, "presence_penalty", { "-2.1", "2.1", "\"0\"" } },
        { IS_OA_CHAT, "frequency_penalty", { "-3", "3", "[0]" } },
        { IS_OA_CHAT, "seed", { "1.5", "\"1\"", "true" } },
        { IS_OA_CHAT, "max_tokens", { "0", "-1", "1.5", "\"3\"", "1e99", "9223372036854775807" } },
        { IS_OA_CHAT, "max_completion_tokens", { "0", "-1", "false" } },
        { IS_OA_CHAT, "n", { "0", "9", "-1", "1.0", "\"1\"" } },
        { IS_OA_CHAT, "stop", { "\"\"", "[\"\"]", "3", "[3]", "{}", "[\"a\",null]",
                                "[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\",\"n\",\"o\",\"p\",\"q\"]" } },
        { IS_OA_CHAT, "logit_bias", { "[]", "{\"a\":1}", "{\"-1\":1}", "{\"1000\":1}", "{\"1\":101}", "{\"1\":\"x\"}", "{\"\":1}", "{\"1 \":1}",
                                      "{\"99999999999999999999\":1}" } },
        { IS_OA_CHAT, "logprobs", { "1", "\"true\"", "[]" } },
        { IS_OA_CHAT, "top_logprobs", { "-1", "21", "1.5", "true" } },
        { IS_OA_CHAT, "stream", { "1", "\"true\"", "[]" } },
        { IS_OA_CHAT, "stream_options", { "true", "[]", "\"\"" } },
        { IS_OA_CHAT, "model", { "3", "\"\"", "[]" } },
        { IS_OA_CHAT, "messages", { "[]", "{}", "\"hi\"", "3" } },
        { IS_OA_CHAT, "memory", { "[]", "true", "\"kv\"" } },
        { IS_OA_CHAT, "tools", { "{}", "true", "\"f\"" } },
        { IS_OA_CHAT, "modalities", { "[\"audio\"]", "[]", "\"text\"", "[3]", "[\"text\",\"audio\"]" } },
        { IS_OA_TEXT, "prompt", { "[]", "\"\"", "[1,2]", "[[1]]", "[\"a\",\"\"]", "3", "{}", "[null]" } },
        { IS_OA_TEXT, "best_of", { "0", "9", "3", "\"1\"" } },
        { IS_OA_TEXT, "logprobs", { "true", "-1", "21" } },
        { IS_OA_TEXT, "echo", { "1", "\"\"" } },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (size_t j = 0; j < 10 && wrong[i].values[j]; j++) {
            char request[600];
            const char *name = wrong[i].name;

            snprintf(request, sizeof request, "{%s\"%s\":%s}",
                     strcmp(name, "messages") == 0 || strcmp(name, "prompt") == 0 ? "" : wrong[i].form == IS_OA_CHAT ? HI "," : "\"prompt\":\"a\",",
                     name, wrong[i].values[j]);
            refuses(wrong[i].form, request, name, name);
        }
}

static void refused_by_name(void **state)
{
    static const char *const chat[] = { "functions", "function_call", "audio", "reasoning_effort", "verbosity", "web_search_options" };
    char request[200];

    for (size_t i = 0; i < sizeof chat / sizeof *chat; i++) {
        snprintf(request, sizeof request, "{" HI ",\"%s\":\"x\"}", chat[i]);
        refuses(IS_OA_CHAT, request, chat[i], "not supported");
    }
    refuses(IS_OA_CHAT, "{" HI ",\"temprature\":1}", "temprature", "did you mean temperature?");
    refuses(IS_OA_CHAT, "{\"message\":[]}", "message", "did you mean messages?");
    refuses(IS_OA_CHAT, "{" HI ",\"user_id\":\"anna\"}", "user_id", "belongs into memory");
    refuses(IS_OA_TEXT, "{\"prompt\":\"a\",\"user_id\":\"anna\"}", "user_id", "not a parameter");
    refuses(IS_OA_CHAT, "{" HI ",\"zzzzzzzz\":1}", "zzzzzzzz", "not a parameter of this endpoint");
    refuses(IS_OA_CHAT, "{" HI ",\"prompt\":\"a\"}", "prompt", "not a parameter");
    refuses(IS_OA_CHAT, "{" HI ",\"best_of\":1}", "best_of", "not a parameter");
    refuses(IS_OA_TEXT, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", "not supported");
    refuses(IS_OA_TEXT, "{\"prompt\":\"a\",\"memory\":{}}", "memory", "chat");
    refuses(IS_OA_TEXT, "{\"prompt\":\"a\",\"messages\":[]}", "messages", "not a parameter");
    refuses(IS_OA_CHAT, "{}", "messages", "missing");
    refuses(IS_OA_CHAT, "{\"messages\":null}", "messages", "missing");
    refuses(IS_OA_TEXT, "{}", "prompt", "missing");
    refuses(IS_OA_CHAT, "{" HI ",\"top_logprobs\":2}", "top_logprobs", "logprobs: true");
    refuses(IS_OA_CHAT, "{" HI ",\"stream_options\":{}}", "stream_options", "stream: true");
    refuses(IS_OA_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"x\":true}}", "stream_options.x", "not supported");
    refuses(IS_OA_CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage", "true or false");
    refuses(IS_OA_CHAT, "{" HI ",\"max_tokens\":2,\"max_completion_tokens\":3}", "max_tokens", "differ");
    refuses(IS_OA_TEXT, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", "echo", "logprobs");
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------ */

#define U(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define S(text) "{\"role\":\"system\",\"content\":\"" text "\"}"

static void is_message(size_t i, const char *role, const char *content)
{
    assert_true(i < parsed.n_messages);
    assert_string_equal(parsed.messages[i].role, role);
    assert_string_equal(parsed.messages[i].content, content);
}

static void messages_become_turns(void **state)
{
    accepts(IS_OA_CHAT, "{\"messages\":[" S("s") "," "{\"role\":\"developer\",\"content\":\"d\"}," U("a") "," U("b") "," A("c") "," A("") "," U("e") "]}");
    assert_int_equal(parsed.n_messages, 4);
    is_message(0, "system", "s\n\nd");
    is_message(1, "user", "a\n\nb");
    is_message(2, "assistant", "c");
    is_message(3, "user", "e");
    /* An assistant that said nothing is left out, and its neighbours become one. */
    accepts(IS_OA_CHAT, "{\"messages\":[" U("a") ",{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[]}," U("b") "]}");
    assert_int_equal(parsed.n_messages, 1);
    is_message(0, "user", "a\n\nb");
    accepts(IS_OA_CHAT, "{\"messages\":[{\"role\":\"user\",\"name\":\"anna\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}");
    is_message(0, "user", "a\nb");
}

static void wrong_messages(void **state)
{
    static const struct { const char *messages, *param, *word; } wrong[] = {
        { A("a"), "messages[0].role", "first message" },
        { S("a"), "messages[0].role", "last message" },
        { U("a") "," A("b"), "messages[1].role", "last message" },
        { U("a") "," S("b") "," U("c"), "messages[1].role", "before all others" },
        { S("s") "," A("a") "," U("c"), "messages[1].role", "first message" },
        { U(""), "messages[0].content", "empty" },
        { S("") "," U("a"), "messages[0].content", "empty" },
        { "{\"role\":\"user\"}", "messages[0].content", "empty" },
        { "{\"role\":\"user\",\"content\":[]}", "messages[0].content", "empty" },
        { "{\"role\":\"user\",\"content\":3}", "messages[0].content", "string" },
        { "{\"role\":\"user\",\"content\":{}}", "messages[0].content", "string" },
        { "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}", "messages[0].content[0]", "image_url" },
        { "{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}", "messages[0].content[0]", "text" },
        { "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"x\":1}]}", "messages[0].content[0]", "x" },
        { "{\"role\":\"user\",\"content\":[\"a\"]}", "messages[0].content[0]", "type" },
        { "{\"role\":\"critic\",\"content\":\"a\"}", "messages[0].role", "critic" },
        { "{\"role\":\"function\",\"content\":\"a\"}", "messages[0].role", "function" },
        { "{\"content\":\"a\"}", "messages[0].role", "role" },
        { "{\"role\":3,\"content\":\"a\"}", "messages[0].role", "role" },
        { "3", "messages[0]", "object" },
        { "{\"role\":\"user\",\"content\":\"a\",\"weight\":1}", "messages[0].weight", "not supported" },
        { "{\"role\":\"user\",\"content\":\"a\",\"name\":3}", "messages[0].name", "string" },
        { "{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[]}", "messages[0].tool_calls", "not supported" },
        { U("a") ",{\"role\":\"tool\",\"content\":\"r\"}", "messages[1].tool_call_id", "id of a call" },
        { U("a") ",{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"x\"}", "messages[1].tool_call_id", "id of a call" },
        { U("a") ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\"}]}," U("b"), "messages[1].tool_calls[0]", "function" },
        { U("a") ",{\"role\":\"assistant\",\"tool_calls\":3}," U("b"), "messages[1].tool_calls", "list" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char request[600];
        snprintf(request, sizeof request, "{\"messages\":[%s]}", wrong[i].messages);
        refuses(IS_OA_CHAT, request, wrong[i].param, wrong[i].word);
    }
}

/* ---- Tools, formats ------------------------------------------------------------------------------------------------------ */

#define F "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":" \
          "\"integer\"}},\"required\":[\"a\"]}}}"
#define G "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"

static void forced_calls(void **state)
{
    const char *name;
    size_t at;

    accepts(IS_OA_CHAT, "{\"messages\":[" S("sys") "," U("hi") "],\"tools\":[" F "," G "],\"tool_choice\":\"required\"}");
    assert_int_equal(parsed.call, IS_OA_CALL_ANY);
    assert_non_null(strstr(parsed.o.grammar, "root ::= \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \" r1 \"}\" | "
                                             "\"{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": \" \"{}\" \"}\"\n"));
    assert_non_null(strstr(parsed.messages[0].content, "sys\n\nAnswer with a call of one of these functions"));
    assert_non_null(strstr(parsed.messages[0].content, "\"description\":\"d\""));
    is_message(1, "user", "hi");
    static const char text[] = "{\"name\": \"f\", \"arguments\": {\"a\":1}}";
    assert_true(is_oa_split_call(&parsed, text, strlen(text), &name, &at));
    assert_string_equal(name, "f");
    assert_string_equal(text + at, "{\"a\":1}}");
    for (size_t n = 0; n < at; n++) assert_false(is_oa_split_call(&parsed, text, n, &name, &at));
    accepts(IS_OA_CHAT, "{" HI ",\"tools\":[" F "," G "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}");
    assert_int_equal(parsed.call, IS_OA_CALL_NAMED);
    assert_null(strstr(parsed.o.grammar, "\\\"f\\\""));
    is_message(0, "system", "Answer with a call of this function, as one JSON object {\"name\": \"NAME\", \"arguments\": {...}}:\n{\"name\":\"g\"}");
    is_message(1, "user", "hi");
    accepts(IS_OA_CHAT, "{" HI ",\"tools\":[" F "],\"tool_choice\":\"none\"}");
    assert_null(parsed.o.grammar);
    assert_int_equal(parsed.n_messages, 1);
    accepts(IS_OA_CHAT, "{" HI ",\"tools\":[]}");
}

/* What a call gave stands in the conversation as the model wrote it, and as the user's word. */
static void calls_of_earlier_turns(void **state)
{
    accepts(IS_OA_CHAT, "{\"messages\":[" U("a") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"
                        "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"}]}");
    assert_int_equal(parsed.n_messages, 3);
    is_message(1, "assistant", "{\"name\": \"f\", \"arguments\": {\"a\":1}}");
    is_message(2, "user", "Result of f:\n42");
}

static void wrong_tools(void **state)
{
    static const struct { const char *fields, *param, *word; } wrong[] = {
        { "\"tools\":[" F "]", "tool_choice", "auto" },
        { "\"tools\":[" F "],\"tool_choice\":\"auto\"", "tool_choice", "required" },
        { "\"tools\":[" F "],\"tool_choice\":\"always\"", "tool_choice", "none" },
        { "\"tools\":[" F "],\"tool_choice\":3", "tool_choice", "none" },
        { "\"tools\":[" F "],\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice", "function" },
        { "\"tools\":[" F "],\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function.name", "name" },
        { "\"tools\":[" F "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}", "tool_choice.function.name", "\"h\"" },
        { "\"tool_choice\":\"required\"", "tool_choice", "needs tools" },
        { "\"tools\":[" F "," F "],\"tool_choice\":\"required\"", "tools[1].function", "another" },
        { "\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"", "tools[0]", "function" },
        { "\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"required\"", "tools[0].function", "letters" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}],\"tool_choice\":\"required\"", "tools[0].function", "letters" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\\"\"}}],\"tool_choice\":\"required\"", "tools[0].function", "letters" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"x\":1}}],\"tool_choice\":\"required\"", "tools[0].function.x", "not known" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{}}}],\"tool_choice\":\"required\"",
          "tools[0].function.parameters", "type object" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":\"object\",\"properties\":{\"p\":{\"pattern\":\"x\"}}}}}],"
          "\"tool_choice\":\"required\"", "tools[0].function.parameters.properties.p.pattern", "not supported" },
        { "\"tools\":[" F "],\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}", "response_format", "forced call" },
        { "\"response_format\":{\"type\":\"xml\"}", "response_format.type", "json_schema" },
        { "\"response_format\":\"json\"", "response_format.type", "json_schema" },
        { "\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema", "object" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}", "response_format.json_schema.name", "name" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}", "response_format.json_schema.schema", "schema" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"string\",\"pattern\":\"a\"}}}",
          "response_format.json_schema.schema.pattern", "not supported" },
        { "\"response_format\":{\"type\":\"json_object\",\"x\":1}", "response_format.x", "not known" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char request[900];
        snprintf(request, sizeof request, "{" HI ",%s}", wrong[i].fields);
        refuses(IS_OA_CHAT, request, wrong[i].param, wrong[i].word);
    }
    accepts(IS_OA_CHAT, "{" HI ",\"response_format\":{\"type\":\"text\"}}");
    assert_null(parsed.o.grammar);
    accepts(IS_OA_CHAT, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}");
    assert_non_null(strstr(parsed.o.grammar, "root ::= object\n"));
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

static void memory_asked(void **state)
{
    accepts(IS_OA_CHAT, "{" HI ",\"memory\":{\"user_id\":\"a\",\"agent_id\":\"b\",\"mode\":\"text\",\"k\":1000,\"threshold\":0.25,\"repair\":0,\"layout\":\"front\",\"stage\":\"refine\","
                        "\"on_full\":\"drop\",\"filters\":{\"metadata\":{\"a\":{\"b\":1}},\"from\":\"2024-05-01\",\"to\":1714564800,\"as_of\":null}}}");
    assert_int_equal(parsed.o.ask.mode, INFERSCALE_MODE_TEXT);
    assert_int_equal(parsed.o.ask.k, 1000);
    assert_ptr_equal(parsed.o.ask.recall, &parsed.recall);
    assert_true(parsed.recall.has_threshold && parsed.recall.threshold == 0.25);
    assert_true(parsed.recall.from == 1714521600 && parsed.recall.to == 1714564800 && parsed.recall.as_of == 0);
    assert_string_equal(parsed.recall.metadata, "{\"a\":{\"b\":1}}");
    assert_int_equal(parsed.o.layout, INFERSCALE_LAYOUT_FRONT);
    assert_int_equal(parsed.o.on_full, 1);
    assert_int_equal(parsed.o.ask.stage, INFERSCALE_STAGE_REFINE);
    assert_true(parsed.memory_named);
    accepts(IS_OA_CHAT, "{" HI ",\"memory\":{\"ids\":[\"12\",7],\"mode\":\"kv\"}}");
    assert_true(parsed.o.n_ids == 2 && parsed.o.ids[0] == 12 && parsed.o.ids[1] == 7);
    accepts(IS_OA_CHAT, "{" HI ",\"memory\":{\"mode\":\"none\"}}");
    assert_false(parsed.memory_named);
    accepts(IS_OA_CHAT, "{" HI ",\"memory\":{}}");
}

static void memory_wrong(void **state)
{
    static const struct { const char *memory, *param, *word; } wrong[] = {
        { "\"k\":0", "memory.k", "1 to 1000" }, { "\"k\":1001", "memory.k", "1 to 1000" }, { "\"k\":\"3\"", "memory.k", "whole" },
        { "\"k\":1.5", "memory.k", "whole" }, { "\"mode\":\"off\"", "memory.mode", "kv, text or none" }, { "\"mode\":1", "memory.mode", "kv" },
        { "\"threshold\":1.5", "memory.threshold", "from 0 to 1" }, { "\"threshold\":-1", "memory.threshold", "from 0 to 1" },
        { "\"threshold\":\"x\"", "memory.threshold", "number" }, { "\"repair\":-1", "memory.repair", "0 to 1000" },
        { "\"stage\":\"second\"", "memory.stage", "best, first or refine" }, { "\"stage\":1", "memory.stage", "best" },
        { "\"layout\":\"back\"", "memory.layout", "turns or front" }, { "\"on_full\":true", "memory.on_full", "refuse or drop" },
        { "\"ids\":[]", "memory.ids", "1 to 1000" }, { "\"ids\":\"12\"", "memory.ids", "list" }, { "\"ids\":[\"x\"]", "memory.ids", "memory.ids[0]" },
        { "\"ids\":[0]", "memory.ids", "id" }, { "\"ids\":[-3]", "memory.ids", "id" }, { "\"ids\":[\"+3\"]", "memory.ids", "id" },
        { "\"ids\":[\"3 \"]", "memory.ids", "id" }, { "\"ids\":[\"99999999999999999999\"]", "memory.ids", "id" }, { "\"ids\":[1,\"1\"]", "memory.ids", "twice" },
        { "\"ids\":[1],\"k\":2", "memory.ids", "beside" }, { "\"ids\":[1],\"threshold\":0.2", "memory.ids", "beside" },
        { "\"filters\":[]", "memory.filters", "object" }, { "\"filters\":{\"x\":1}", "memory.filters.x", "not known" },
        { "\"filters\":{\"metadata\":3}", "memory.filters.metadata", "object" }, { "\"filters\":{\"from\":\"soon\"}", "memory.filters.from", "is no time" },
        { "\"filters\":{\"to\":true}", "memory.filters.to", "is no time" }, { "\"userid\":\"a\"", "memory.userid", "did you mean user_id?" },
        { "\"user\":\"a\"", "memory.user", "did you mean user_id?" }, { "\"qqqqqqqq\":1", "memory.qqqqqqqq", "not a member of memory" },
        { "\"filters\":{\"as_of\":9223372036854775807}", "memory.filters.as_of", "2200" },
        { "\"filters\":{\"from\":-9223372036854775807}", "memory.filters.from", "2200" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char request[300];
        snprintf(request, sizeof request, "{" HI ",\"memory\":{%s}}", wrong[i].memory);
        refuses(IS_OA_CHAT, request, wrong[i].param, wrong[i].word);
    }
}

/* The wire says content_filter for every answer that was ended; the log tells a client that hung up from a fact that was forgotten. */
static void ends_in_the_log(void **state)
{
    inferscale_answer a = { .finish = "cancelled" };
    is_oa_ask ask = { 0 };
    is_oa_run run = { .ask = &ask };
    is_oa_choice c = { .run = &run, .answer = &a };

    (void)state;
    assert_string_equal(is_oa_finish(&c), "content_filter");
    assert_string_equal(is_oa_ended(&c, false), "content_filter");
    assert_string_equal(is_oa_ended(&c, true), "cancelled");
    a.finish = "length";
    assert_string_equal(is_oa_ended(&c, true), "length");
}

/* A failed allocation is a 500, and leaves nothing behind. */
static void parser_out_of_memory(void **state)
{
    json_t *body = loads("{" HI ",\"stop\":[\"a\"],\"logit_bias\":{\"1\":1},\"memory\":{\"ids\":[1]},\"tools\":[" F "," G "],\"tool_choice\":\"required\"}");
    bool ok = false;

    for (size_t n = 1; !ok; n++) {
        is_oa_ask a;
        is_oa_fault f;

        is_mem_fail_at(n);
        ok = is_oa_parse(IS_OA_CHAT, body, &known, &a, &f);
        is_mem_fail_at(0);
        if (!ok) assert_true(f.message[0]);
        is_oa_ask_free(&a);
        assert_true(n < 1000);
    }
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing), cmocka_unit_test(every_number), cmocka_unit_test(wrong_values), cmocka_unit_test(refused_by_name),
        cmocka_unit_test(messages_become_turns), cmocka_unit_test(wrong_messages), cmocka_unit_test(forced_calls),
        cmocka_unit_test(calls_of_earlier_turns), cmocka_unit_test(wrong_tools), cmocka_unit_test(memory_asked), cmocka_unit_test(memory_wrong),
        cmocka_unit_test(parser_out_of_memory), cmocka_unit_test(ends_in_the_log),
    };

    return cmocka_run_group_tests_name("openai: parser", tests, NULL, parser_over);
}
