/* accuracy_judge.c - a model behind an OpenAI endpoint says whether an answer is right. */
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "eval/accuracy_run.h"
#include "eval/load.h"

enum { WORD_MOST = 16, OK = 200 };

static const char rules[] =
    "You grade answers to questions about people's lives. You are given a question, the right "
    "answer "
    "and the answer of a student. The student's answer is right if it says the right answer, in "
    "whatever words, and does not say another one as well. Reply with one word: yes or no.";

static json_t *request(const accuracy_judge *j, const quiz_question *q, const char *answer)
{
    is_buf b = IS_BUF_INIT;
    json_t *body, *text;

    is_buf_fmt(&b, "Question: %s\nRight answer: %s\nStudent's answer: ", q->text, q->answers[0]);
    is_buf_str(&b, answer);
    text = is_buf_ok(&b) ? json_stringn((const char *)b.data, b.len) : NULL;
    if (!text && is_buf_ok(&b)) text = json_string("(no readable text)"); /* no UTF-8 */
    is_buf_free(&b);
    body = json_pack("{s:s,s:i,s:i,s:[{s:s,s:s},{s:s,s:o}]}", "model", j->model, "temperature", 0,
                     "max_tokens", 8, "messages", "role", "system", "content", rules, "role",
                     "user", "content", text);
    return body;
}

/* The first word, in small letters. */
static int read_verdict(const char *text)
{
    char word[WORD_MOST] = "";
    size_t n = 0;

    while (*text && !((*text | 32) >= 'a' && (*text | 32) <= 'z')) text++;
    for (; n + 1 < sizeof word && (*text | 32) >= 'a' && (*text | 32) <= 'z'; text++)
        word[n++] = (char)(*text | 32);
    word[n] = 0;
    return strcmp(word, "yes") == 0 ? 1 : strcmp(word, "no") == 0 ? 0 : -1;
}

is_status accuracy_ask_judge(accuracy_work *w, const quiz_question *q, const char *answer, int *out)
{
    const accuracy_judge *j = &w->o->judge;
    json_t *body, *reply = NULL, *choice;
    const char *text;
    long status = 0;
    is_status st;

    *out = -1;
    if (j->url == NULL) return INFERSCALE_OK;
    body = request(j, q, answer);
    if (body == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while asking the judge");
    st = load_call(j->url, j->key, "POST", "/v1/chat/completions", body, &status, &reply);
    json_decref(body);
    choice = json_array_get(json_object_get(reply, "choices"), 0);
    text = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    if (st == INFERSCALE_OK && status == OK && text) *out = read_verdict(text);
    else if (st == INFERSCALE_OK)
        st =
            is_fail(INFERSCALE_E_IO,
                    "the judge at %.200s answered with HTTP status %ld; check its address, key and "
                    "model, and run it again to go on",
                    j->url, status);
    json_decref(reply);
    return st;
}
