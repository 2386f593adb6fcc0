/* extract_ask.c - what the model is asked, and its answer: from the served model, held to a grammar, or from an OpenAI endpoint, on a short
 * lead: times, bytes and redirects are bounded, and no text of it reaches a log. */
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"
#include "serve/extract_in.h"

enum { CONNECT_MS = 10000, TOTAL_MS = 60000, REPLY_MAX = 1 << 20, FACT_TOKENS = 400, CHOICE_TOKENS = 24 };

const char extract_told[] =
    "You write down facts about people from a dialogue, so that they can be remembered for years. Reply with JSON only, in this form: "
    "{\"facts\": [{\"text\": \"...\", \"line\": 1}]}. Each text is one short sentence in the third person that can be understood alone: say who "
    "it is about by name, or \"The user\" where no name is known, and turn words such as yesterday into dates. line is the number of the line "
    "that the fact comes from. Take facts only from lines that a user said, in their own words and language. Leave out greetings, questions, "
    "small talk, and everything that only the assistant said. If there is nothing to remember, reply {\"facts\": []}.";

static const char FACT_GRAMMAR[] =
    "root ::= \"{\\\"facts\\\": [\" ( fact ( \", \" fact ){0,11} )? \"]}\"\n"
    "fact ::= \"{\\\"text\\\": \\\"\" char char* \"\\\", \\\"line\\\": \" [1-9] [0-9]? \"}\"\n"
    "char ::= [^\"\\\\\\x00-\\x1F]\n";

static const char CHOICE_TOLD[] =
    "You keep a list of facts up to date. You are given one new fact and the numbered old facts nearest to it. Decide what the new fact is: ADD "
    "if it says something that no old fact says; UPDATE if it is a newer or fuller form of one old fact; DELETE if it says that one old fact is "
    "no longer true; NOOP if an old fact says the same already. Reply with JSON only: {\"event\": \"UPDATE\", \"number\": 2}, with the number of "
    "the old fact that is meant, or 0 for ADD.";

/* ---- The served model ------------------------------------------------------------------------------------------------------ */

static is_status ask_served(const is_extractor *x, const char *system, const char *user, const char *grammar, uint32_t max_tokens, char **out)
{
    const inferscale_message messages[] = { { "system", system }, { "user", user } };
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    is_status st;

    o.ask.mode = INFERSCALE_MODE_NONE;
    o.ask.max_tokens = max_tokens;
    o.grammar = grammar;
    st = inferscale_complete(x->is, NULL, messages, 2, &o, &a);
    if (st == INFERSCALE_OK) {
        *out = is_strdup(a->text);
        if (!*out) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for what the model extracts");
    }
    inferscale_answer_free(a);
    return st;
}

/* ---- An endpoint ----------------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
    is_buf *b = ctx;

    (void)size;
    is_buf_add(b, p, n);
    return is_buf_ok(b) ? n : 0; /* past the limit: the transfer ends */
}

static char *request_body(const is_extractor *x, const char *system, const char *user, uint32_t max_tokens)
{
    json_t *o = json_pack("{s:s,s:[{s:s,s:s},{s:s,s:s}],s:i,s:i,s:{s:s}}", "model", x->model && *x->model ? x->model : "default", "messages",
                          "role", "system", "content", system, "role", "user", "content", user, "temperature", 0, "max_tokens", (int)max_tokens,
                          "response_format", "type", "json_object");
    size_t n = o ? json_dumpb(o, NULL, 0, JSON_COMPACT) : 0;
    char *text = n ? is_malloc(n + 1) : NULL;

    if (text) {
        json_dumpb(o, text, n, JSON_COMPACT);
        text[n] = 0;
    }
    json_decref(o);
    return text;
}

static bool is_off(const is_extractor *x)
{
    return x->cancel && __atomic_load_n(x->cancel, __ATOMIC_ACQUIRE);
}

/* Called by libcurl about once a second; not 0: no further. */
static int on_progress(void *ctx, curl_off_t to_come, curl_off_t came, curl_off_t to_go,
                       curl_off_t went)
{
    (void)to_come, (void)came, (void)to_go, (void)went;
    return is_off(ctx);
}

static is_status transfer(const is_extractor *x, CURL *c, const char *url, struct curl_slist *headers, const char *body, is_buf *reply)
{
    char why[CURL_ERROR_SIZE] = "";
    long code = 0;
    CURLcode rc;

    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, x->timeout_ms ? x->timeout_ms : (long)TOTAL_MS);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, (void *)(uintptr_t)x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    rc = curl_easy_perform(c);
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return is_fail(INFERSCALE_E_CANCELLED,
                       "cancelled while the extractor was waited for; ask again");
    if (rc != CURLE_OK)
        return is_fail(INFERSCALE_E_IO, "the extractor %s does not answer: %s; check --extractor", x->url,
                       reply->failed ? "its reply is too long" : why[0] ? why : curl_easy_strerror(rc));
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200)
        return is_fail(code == 401 || code == 403 ? INFERSCALE_E_DENIED : INFERSCALE_E_IO, "the extractor %s replies with HTTP %ld; check %s",
                       x->url, code, code == 401 || code == 403 ? "--extractor-key" : "--extractor and --extractor-model");
    return INFERSCALE_OK;
}

static is_status content_of(const is_extractor *x, const is_buf *reply, char **out)
{
    json_t *o = reply->len ? json_loadb((const char *)reply->data, reply->len, 0, NULL) : NULL;
    json_t *message = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "message");
    const char *text = json_string_value(json_object_get(message, "content"));
    is_status st = INFERSCALE_OK;

    if (!text) st = is_fail(INFERSCALE_E_PARSE, "the extractor %s does not reply as /chat/completions does; check --extractor", x->url);
    else if (!(*out = is_strdup(text))) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for what the model extracts");
    json_decref(o);
    return st;
}

static is_status ask_endpoint(const is_extractor *x, const char *system, const char *user, uint32_t max_tokens, char **out)
{
    is_buf url = IS_BUF_INIT, key = IS_BUF_INIT, reply = { .max = REPLY_MAX };
    char *body = request_body(x, system, user, max_tokens);
    struct curl_slist *headers;
    CURL *c;
    size_t n = strlen(x->url);
    is_status st;

    pthread_once(&once, init);
    c = curl_easy_init();
    headers = curl_slist_append(NULL, "Content-Type: application/json");
    is_buf_fmt(&url, "%.*s/chat/completions", (int)(n && x->url[n - 1] == '/' ? n - 1 : n), x->url);
    is_buf_fmt(&key, "Authorization: Bearer %s", x->key ? x->key : "");
    if (x->key && *x->key && is_buf_ok(&key)) {
        struct curl_slist *more = curl_slist_append(headers, (const char *)key.data);

        if (!more) curl_slist_free_all(headers);
        headers = more;
    }
    st = c && headers && body && is_buf_ok(&url) && is_buf_ok(&key)
             ? transfer(x, c, (const char *)url.data, headers, body, &reply)
             : is_fail(INFERSCALE_E_NOMEM, "out of memory for a request to the extractor");
    if (st == INFERSCALE_OK) st = content_of(x, &reply, out);
    curl_slist_free_all(headers);
    if (c) curl_easy_cleanup(c);
    is_buf_free(&reply);
    is_buf_free(&key);
    is_buf_free(&url);
    is_free(body);
    return st;
}

is_status extract_ask(const is_extractor *x, const char *system, const char *user, const char *grammar, uint32_t max_tokens, char **out)
{
    *out = NULL;
    return x->url && *x->url ? ask_endpoint(x, system, user, max_tokens, out) : ask_served(x, system, user, grammar, max_tokens, out);
}

/* ---- The two questions ----------------------------------------------------------------------------------------------------- */

/* On one line, so that nobody's text makes lines of its own; cut to so many bytes between characters. */
static void put_flat(is_buf *b, const char *text, size_t most)
{
    size_t n = strlen(text);

    n = n > most ? is_utf8_whole(text, most) : n;
    for (size_t i = 0; i < n; i++) is_buf_add(b, (unsigned char)text[i] < 0x20 ? " " : &text[i], 1);
}

is_status extract_facts(const is_extractor *x, const extract_line *lines, size_t n, extract_found *out)
{
    is_buf b = IS_BUF_INIT;
    char date[32], *reply = NULL;
    is_status st;

    memset(out, 0, sizeof *out);
    is_date_text(n ? lines[0].when : 0, date);
    is_buf_fmt(&b, "Date of the dialogue: %s\n\n", date);
    for (size_t i = 0; i < n; i++) {
        is_buf_fmt(&b, "%zu ", i + 1);
        put_flat(&b, lines[i].who, 64);
        is_buf_fmt(&b, "%s: ", lines[i].is_user && strcmp(lines[i].who, "user") != 0 ? " (user)" : "");
        put_flat(&b, lines[i].text, EXTRACT_CHARS);
        is_buf_str(&b, "\n");
    }
    is_buf_str(&b, "\nThe facts as JSON:");
    st = is_buf_ok(&b) ? extract_ask(x, extract_told, (const char *)b.data, FACT_GRAMMAR, FACT_TOKENS, &reply)
                       : is_fail(INFERSCALE_E_NOMEM, "out of memory for an extraction");
    if (st == INFERSCALE_OK) extract_read(reply, lines, n, out);
    is_free(reply);
    is_buf_free(&b);
    return st;
}

is_status extract_choose(const is_extractor *x, const char *fact, const char *const *old, size_t n, extract_choice *choice, size_t *which)
{
    char grammar[200], *reply = NULL;
    is_buf b = IS_BUF_INIT;
    is_status st;

    snprintf(grammar, sizeof grammar,
             "root ::= \"{\\\"event\\\": \\\"\" ( \"ADD\" | \"UPDATE\" | \"DELETE\" | \"NOOP\" ) \"\\\", \\\"number\\\": \" [0-%zu] \"}\"\n", n);
    is_buf_str(&b, "New fact: ");
    put_flat(&b, fact, EXTRACT_CHARS);
    is_buf_str(&b, "\n\nOld facts:\n");
    for (size_t i = 0; i < n; i++) {
        is_buf_fmt(&b, "%zu ", i + 1);
        put_flat(&b, old[i], 500);
        is_buf_str(&b, "\n");
    }
    is_buf_str(&b, "\nThe decision as JSON:");
    st = is_buf_ok(&b) ? extract_ask(x, CHOICE_TOLD, (const char *)b.data, grammar, CHOICE_TOKENS, &reply)
                       : is_fail(INFERSCALE_E_NOMEM, "out of memory for an extraction");
    if (st == INFERSCALE_OK) *choice = extract_read_choice(reply, n, which);
    is_free(reply);
    is_buf_free(&b);
    return st;
}
