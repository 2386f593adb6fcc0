/* locomo.c - reader of LoCoMo files as published. Strict about shape (a wrong type is an error that names the place), lenient
 * about what the published files really hold: evidence written as "D8:6; D9:17", numbers as answers, sessions without text. */
#include "eval/locomo.h"

#include <ctype.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { MAX_SESSIONS = 10000, MAX_DIA_IDS = 64, MAX_FILE_BYTES = 256 << 20, ID_MAX = 32 };

/* Where the reader stands, for messages. */
typedef struct place { const char *conversation; char at[160]; } place;

static void at(place *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void at(place *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->at, sizeof p->at, fmt, ap);
    va_end(ap);
}

static is_status wrong(const place *p, const char *expected)
{
    return is_fail(INFERSCALE_E_PARSE, "conversation %s, %s: expected %s; use a LoCoMo file as published", p->conversation,
                   p->at, expected);
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while reading LoCoMo; free some and try again");
}

static is_status copy(const char *s, char **out)
{
    *out = is_strdup(s ? s : "");
    return *out ? INFERSCALE_OK : no_memory();
}

/* Room for one more zeroed element of an array. */
static is_status more(void *array, size_t n, size_t size, void *element)
{
    void **p = array;
    if ((n & (n - 1)) == 0) { /* full at powers of two */
        void *q = is_realloc(*p, (n ? n * 2 : 1) * size);
        if (!q) return no_memory();
        *p = q;
    }
    *(void **)element = memset((char *)*p + n * size, 0, size);
    return INFERSCALE_OK;
}

/* ---- Dates --------------------------------------------------------------------------------------------------------------- */

static int month_of(const char *s)
{
    static const char *const names[] = {"january", "february", "march", "april", "may", "june",
                                        "july", "august", "september", "october", "november", "december"};
    for (int i = 0; i < 12; i++)
        if (strcmp(s, names[i]) == 0) return i + 1;
    return 0;
}

static int days_in(int y, int m)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return m == 2 && ((y % 4 == 0 && y % 100 != 0) || y % 400 == 0) ? 29 : days[m - 1];
}

int64_t locomo_time(const char *s)
{
    int h, mi, d, y, end = 0;
    char half[3], month[16];

    if (!s || sscanf(s, " %2d:%2d %2[apAPmM] on %2d %15[A-Za-z] , %4d %n", &h, &mi, half, &d, month, &y, &end) != 6) return 0;
    if (s[end]) return 0;
    for (char *c = month; *c; c++) *c = (char)tolower((unsigned char)*c);
    for (char *c = half; *c; c++) *c = (char)tolower((unsigned char)*c);
    int m = month_of(month);
    if ((strcmp(half, "am") != 0 && strcmp(half, "pm") != 0) || h < 1 || h > 12 || mi < 0 || mi > 59) return 0;
    if (m == 0 || y < 1000 || d < 1 || d > days_in(y, m)) return 0;
    h = h % 12 + (half[0] == 'p' ? 12 : 0);
    return is_days_from_civil(y, m, d) * 86400 + h * 3600 + mi * 60;
}

/* ---- Turns --------------------------------------------------------------------------------------------------------------- */

static is_status text_of(const place *p, const json_t *object, const char *key, bool needed, char **out)
{
    const json_t *v = json_object_get(object, key);
    if (!v && !needed) return copy("", out);
    if (!json_is_string(v)) return wrong(p, key);
    return copy(json_string_value(v), out);
}

static is_status read_turn(place *p, const json_t *o, int session, int64_t time, locomo_conversation *c)
{
    locomo_turn *t;

    if (!json_is_object(o)) return wrong(p, "an object with speaker, dia_id and text");
    IS_TRY(more(&c->turns, c->n_turns, sizeof *t, &t));
    c->n_turns++;
    t->session = session;
    t->time = time;
    IS_TRY(text_of(p, o, "dia_id", true, &t->dia_id));
    IS_TRY(text_of(p, o, "speaker", true, &t->speaker));
    IS_TRY(text_of(p, o, "text", true, &t->text));
    return text_of(p, o, "blip_caption", false, &t->caption);
}

static is_status session_time(place *p, const json_t *conv, int session, int64_t *out)
{
    char key[48];

    snprintf(key, sizeof key, "session_%d_date_time", session);
    at(p, "%s", key);
    const char *s = json_string_value(json_object_get(conv, key));
    *out = locomo_time(s);
    return *out ? INFERSCALE_OK : wrong(p, "a date like \"1:56 pm on 8 May, 2023\"");
}

static is_status read_session(place *p, const json_t *conv, int session, const json_t *turns, locomo_conversation *c)
{
    int64_t time;
    size_t i;
    json_t *turn;

    if (!json_is_array(turns)) return wrong(p, "a list of turns");
    if (json_array_size(turns) == 0) return INFERSCALE_OK;
    IS_TRY(session_time(p, conv, session, &time));
    json_array_foreach(turns, i, turn) {
        at(p, "session_%d turn %zu", session, i + 1);
        IS_TRY(read_turn(p, turn, session, time, c));
    }
    return INFERSCALE_OK;
}

/* The n of "PREFIXnSUFFIX", 1 .. MAX_SESSIONS; 0 if the key is something else. */
static int number_in(const char *key, const char *prefix, const char *suffix)
{
    long n = 0;
    size_t plen = strlen(prefix);
    if (strncmp(key, prefix, plen) != 0 || key[plen] < '1' || key[plen] > '9') return 0;
    for (key += plen; *key >= '0' && *key <= '9'; key++) {
        n = n * 10 + (*key - '0');
        if (n > MAX_SESSIONS) return 0;
    }
    return strcmp(key, suffix) == 0 ? (int)n : 0;
}

static int last_number(const json_t *object, const char *prefix, const char *suffix)
{
    const char *key;
    json_t *value;
    int last = 0;
    json_object_foreach((json_t *)object, key, value) {
        int n = number_in(key, prefix, suffix);
        if (n > last) last = n;
    }
    return last;
}

static is_status read_turns(place *p, const json_t *conv, locomo_conversation *c)
{
    int last = last_number(conv, "session_", "");
    for (int s = 1; s <= last; s++) {
        char key[32];
        snprintf(key, sizeof key, "session_%d", s);
        const json_t *turns = json_object_get(conv, key);
        at(p, "%s", key);
        if (turns) IS_TRY(read_session(p, conv, s, turns, c));
    }
    return INFERSCALE_OK;
}

/* ---- Turn ids ------------------------------------------------------------------------------------------------------------ */

/* Adds every "D<session>:<turn>" found in s, once each, leading zeros taken off (the published files hold "D8:6; D9:17" and
 * "D:11:26"). */
static is_status add_dia_ids(const char *s, char ***ids, size_t *n)
{
    for (const char *q = s; (q = strchr(q, 'D')); q++) {
        unsigned session, turn;
        char id[ID_MAX], **slot;
        size_t i;
        const char *number = q[1] == ':' ? q + 2 : q + 1;
        if (*number < '0' || *number > '9' || sscanf(number, "%6u:%6u", &session, &turn) != 2) continue;
        snprintf(id, sizeof id, "D%u:%u", session, turn);
        for (i = 0; i < *n && strcmp((*ids)[i], id) != 0; i++) continue;
        if (i < *n || *n == MAX_DIA_IDS) continue;
        IS_TRY(more(ids, *n, sizeof **ids, &slot));
        IS_TRY(copy(id, slot));
        ++*n;
    }
    return INFERSCALE_OK;
}

/* From one string or a list of strings. */
static is_status read_dia_ids(const place *p, const json_t *v, char ***ids, size_t *n)
{
    size_t i;
    json_t *e;

    if (json_is_string(v)) return add_dia_ids(json_string_value(v), ids, n);
    if (!json_is_array(v)) return wrong(p, "a turn id or a list of them");
    json_array_foreach(v, i, e) {
        if (!json_is_string(e)) return wrong(p, "a list of turn ids");
        IS_TRY(add_dia_ids(json_string_value(e), ids, n));
    }
    return INFERSCALE_OK;
}

/* ---- Observations -------------------------------------------------------------------------------------------------------- */

static is_status read_observation(const place *p, const json_t *pair, const char *speaker, int session, int64_t time,
                                  locomo_conversation *c)
{
    locomo_observation *o;

    if (!json_is_array(pair) || json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)))
        return wrong(p, "[text, turn ids]");
    IS_TRY(more(&c->observations, c->n_observations, sizeof *o, &o));
    c->n_observations++;
    o->session = session;
    o->time = time;
    IS_TRY(copy(speaker, &o->speaker));
    IS_TRY(copy(json_string_value(json_array_get(pair, 0)), &o->text));
    return read_dia_ids(p, json_array_get(pair, 1), &o->dia_ids, &o->n_dia_ids);
}

static is_status read_observations(place *p, const json_t *conv, const json_t *observation, locomo_conversation *c)
{
    if (!observation) return INFERSCALE_OK;
    at(p, "observation");
    if (!json_is_object(observation)) return wrong(p, "an object");
    int last = last_number(observation, "session_", "_observation");
    for (int s = 1; s <= last; s++) {
        char key[48];
        const char *speaker;
        json_t *list, *pair;
        int64_t time;
        size_t i;

        snprintf(key, sizeof key, "session_%d_observation", s);
        json_t *of_session = json_object_get(observation, key);
        if (!of_session) continue;
        at(p, "%s", key);
        if (!json_is_object(of_session)) return wrong(p, "an object of speakers");
        IS_TRY(session_time(p, conv, s, &time));
        json_object_foreach(of_session, speaker, list) {
            at(p, "%s of %.40s", key, speaker);
            if (!json_is_array(list)) return wrong(p, "a list of observations");
            json_array_foreach(list, i, pair) {
                at(p, "%s of %.40s, number %zu", key, speaker, i + 1);
                IS_TRY(read_observation(p, pair, speaker, s, time, c));
            }
        }
    }
    return INFERSCALE_OK;
}

/* ---- Questions ----------------------------------------------------------------------------------------------------------- */

static is_status read_answer(const place *p, const json_t *o, char **out)
{
    char number[40];
    const json_t *v = json_object_get(o, "answer");

    if (!v) v = json_object_get(o, "adversarial_answer");
    if (!v || json_is_null(v)) return copy("", out);
    if (json_is_string(v)) return copy(json_string_value(v), out);
    if (json_is_integer(v)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(number, sizeof number, "%.15g", json_real_value(v));
    else if (json_is_boolean(v)) snprintf(number, sizeof number, "%s", json_is_true(v) ? "yes" : "no");
    else return wrong(p, "an answer that is a text or a number");
    return copy(number, out);
}

static is_status read_question(const place *p, const json_t *o, locomo_conversation *c)
{
    locomo_qa *q;

    if (!json_is_object(o)) return wrong(p, "an object with question, answer, evidence and category");
    IS_TRY(more(&c->qa, c->n_qa, sizeof *q, &q));
    c->n_qa++;
    IS_TRY(text_of(p, o, "question", true, &q->question));
    IS_TRY(read_answer(p, o, &q->answer));
    const json_t *category = json_object_get(o, "category");
    if (!json_is_integer(category) || json_integer_value(category) < 1 || json_integer_value(category) > 5)
        return wrong(p, "a category from 1 to 5");
    q->category = (int)json_integer_value(category);
    const json_t *evidence = json_object_get(o, "evidence");
    return evidence ? read_dia_ids(p, evidence, &q->evidence, &q->n_evidence) : INFERSCALE_OK;
}

static is_status read_questions(place *p, const json_t *qa, locomo_conversation *c)
{
    size_t i;
    json_t *o;

    if (!qa) return INFERSCALE_OK;
    at(p, "qa");
    if (!json_is_array(qa)) return wrong(p, "a list of questions");
    json_array_foreach(qa, i, o) {
        at(p, "question %zu", i + 1);
        IS_TRY(read_question(p, o, c));
    }
    return INFERSCALE_OK;
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static is_status read_conversation(const json_t *sample, size_t number, locomo *l)
{
    char label[32];
    place p = {.conversation = label};
    locomo_conversation *c;

    snprintf(label, sizeof label, "%zu", number + 1);
    at(&p, "top level");
    if (!json_is_object(sample)) return wrong(&p, "an object with sample_id, conversation, observation and qa");
    IS_TRY(more(&l->conversations, l->n, sizeof *c, &c));
    l->n++;
    IS_TRY(text_of(&p, sample, "sample_id", true, &c->id));
    const json_t *conv = json_object_get(sample, "conversation");
    if (!json_is_object(conv)) return wrong(&p, "an object named conversation");
    p.conversation = c->id;
    IS_TRY(read_turns(&p, conv, c));
    IS_TRY(read_observations(&p, conv, json_object_get(sample, "observation"), c));
    return read_questions(&p, json_object_get(sample, "qa"), c);
}

is_status locomo_parse(const char *json, size_t n, locomo **out)
{
    json_error_t error;
    size_t i;
    json_t *sample;

    *out = NULL;
    json_t *root = json_loadb(json, n, 0, &error);
    if (!root)
        return is_fail(INFERSCALE_E_PARSE, "not JSON at line %d: %s; use a LoCoMo file as published", error.line, error.text);
    locomo *l = is_calloc(1, sizeof *l);
    is_status st = l ? INFERSCALE_OK : no_memory();
    if (st == INFERSCALE_OK && json_is_object(root)) st = read_conversation(root, 0, l);
    else if (st == INFERSCALE_OK && !json_is_array(root))
        st = is_fail(INFERSCALE_E_PARSE, "the file is not a list of conversations; use a LoCoMo file as published");
    else
        for (i = 0; st == INFERSCALE_OK && i < json_array_size(root); i++) {
            sample = json_array_get(root, i);
            st = read_conversation(sample, i, l);
        }
    json_decref(root);
    if (st == INFERSCALE_OK && l->n == 0)
        st = is_fail(INFERSCALE_E_PARSE, "the file holds no conversation; use a LoCoMo file as published");
    if (st != INFERSCALE_OK) {
        locomo_free(l);
        return st;
    }
    *out = l;
    return INFERSCALE_OK;
}

is_status locomo_load(const char *path, locomo **out)
{
    uint8_t *p = NULL;
    size_t n = 0;

    *out = NULL;
    IS_TRY(is_file_read_all(is_fs_posix(), path, MAX_FILE_BYTES, &p, &n));
    is_status st = locomo_parse((const char *)p, n, out);
    is_free(p);
    return st;
}

static void free_strings(char **s, size_t n)
{
    for (size_t i = 0; i < n; i++) is_free(s[i]);
    is_free(s);
}

static void free_conversation(locomo_conversation *c)
{
    for (size_t i = 0; i < c->n_turns; i++) {
        is_free(c->turns[i].dia_id);
        is_free(c->turns[i].speaker);
        is_free(c->turns[i].text);
        is_free(c->turns[i].caption);
    }
    for (size_t i = 0; i < c->n_observations; i++) {
        is_free(c->observations[i].speaker);
        is_free(c->observations[i].text);
        free_strings(c->observations[i].dia_ids, c->observations[i].n_dia_ids);
    }
    for (size_t i = 0; i < c->n_qa; i++) {
        is_free(c->qa[i].question);
        is_free(c->qa[i].answer);
        free_strings(c->qa[i].evidence, c->qa[i].n_evidence);
    }
    is_free(c->id);
    is_free(c->turns);
    is_free(c->observations);
    is_free(c->qa);
}

void locomo_free(locomo *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->n; i++) free_conversation(&l->conversations[i]);
    is_free(l->conversations);
    is_free(l);
}

char *locomo_turn_text(const locomo_turn *t)
{
    is_buf b = IS_BUF_INIT;
    bool text = !is_utf8_blank(t->text, strlen(t->text)), caption = !is_utf8_blank(t->caption, strlen(t->caption));

    is_buf_str(&b, text ? t->text : "");
    if (caption) is_buf_fmt(&b, "%s[%s]", text ? " " : "", t->caption);
    return is_buf_take(&b);
}

const locomo_conversation *locomo_find(const locomo *l, const char *id)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->conversations[i].id, id) == 0) return &l->conversations[i];
    return NULL;
}
