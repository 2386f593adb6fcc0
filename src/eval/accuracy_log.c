/* accuracy_log.c - see accuracy_log.h. */
#include "eval/accuracy_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

static const char mark[] = "{\"results\":\"inferscale eval accuracy\",";
enum { VERSION = 2, MARKS = 5, FILE_MOST = 256 << 20, DIGEST_SHOWN = 16 };

struct accuracy_log {
    char *path;
    int fd;
    off_t end; /* behind the last whole line */
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while keeping results");
}

void accuracy_log_close(accuracy_log *log)
{
    if (log == NULL) return;
    if (log->fd >= 0) close(log->fd);
    is_free(log->path);
    is_free(log);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static is_status append(accuracy_log *log, const is_buf *line)
{
    size_t at = 0;

    if (!is_buf_ok(line)) return no_memory();
    while (at < line->len) {
        ssize_t n = pwrite(log->fd, line->data + at, line->len - at, log->end + (off_t)at);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        at += (size_t)n;
    }
    if (at == line->len && fdatasync(log->fd) == 0) {
        log->end += (off_t)at;
        return INFERSCALE_OK;
    }
    is_status st =
        is_fail_errno("cannot write results to %s; make room and run it again to go on", log->path);
    /* the torn line is cut off at the next opening */
    if (ftruncate(log->fd, log->end) != 0) return st;
    return st;
}

static void add_number(is_buf *b, double x)
{
    if (isfinite(x)) is_buf_fmt(b, "%.6g", x);
    else is_buf_str(b, "null");
}

is_status accuracy_log_add(accuracy_log *log, const quiz *q, const accuracy *a,
                           const accuracy_question *r)
{
    is_buf b = IS_BUF_INIT;
    is_status st;

    is_buf_fmt(&b, "{\"index\":%zu,\"type\":\"%s\",\"recall\":", a->n, q->types[r->type]);
    add_number(&b, r->recall);
    is_buf_str(&b, ",\"marks\":[");
    for (size_t i = 0; i < a->n_arms; i++) {
        const accuracy_mark *m = &r->marks[i];

        if (i) is_buf_str(&b, ",");
        if (!m->asked) {
            is_buf_str(&b, "null");
            continue;
        }
        is_buf_fmt(&b, "[%d,", m->right);
        add_number(&b, m->f1);
        is_buf_str(&b, ",");
        add_number(&b, m->nll);
        is_buf_str(&b, ",");
        add_number(&b, m->choice < 0 ? NAN : m->choice);
        is_buf_str(&b, ",");
        add_number(&b, m->judged < 0 ? NAN : m->judged);
        is_buf_str(&b, "]");
    }
    is_buf_str(&b, "]}\n");
    st = append(log, &b);
    is_buf_free(&b);
    return st;
}

/* ---- The first line -------------------------------------------------------------------------- */

static is_status begin(accuracy_log *log, json_t *configuration, const accuracy *a)
{
    char *text = json_dumps(configuration, JSON_COMPACT | JSON_SORT_KEYS), hex[IS_HASH_HEX];
    uint8_t digest[IS_HASH_BYTES];
    json_t *arms = json_array();
    is_buf b = IS_BUF_INIT;
    char *list;
    is_status st = no_memory();

    for (size_t i = 0; i < a->n_arms; i++)
        json_array_append_new(arms, json_string(a->arms[i].name));
    list = json_dumps(arms, JSON_COMPACT);
    if (text && list) {
        is_hash_once(NULL, text, strlen(text), digest);
        is_hex(digest, DIGEST_SHOWN, hex);
        is_buf_str(&b, mark);
        is_buf_fmt(&b,
                   "\"version\":%d,\"digest\":\"%s\","
                   "\"configuration\":%s,\"arms\":%s,"
                   "\"marks\":[\"right\",\"f1\",\"gold_nll\",\"choice\",\"judged\"]}\n",
                   VERSION, hex, text, list);
        st = append(log, &b);
    }
    is_buf_free(&b);
    json_decref(arms);
    is_free(list);
    is_free(text);
    return st;
}

/* "k is 10 there and 20 here". */
static is_status differs(const accuracy_log *log, json_t *there, json_t *here)
{
    const char *key;
    json_t *value;
    is_status st;

    json_object_foreach(here, key, value)
    {
        json_t *other = json_object_get(there, key);
        char *a, *b;

        if (other && json_equal(other, value)) continue;
        a = other ? json_dumps(other, JSON_COMPACT | JSON_ENCODE_ANY) : is_strdup("not said");
        b = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        st = is_fail(INFERSCALE_E_INVALID,
                     "%s holds results of another configuration: \"%s\" is %.200s there and %.200s "
                     "here; give the options that it was begun with, or another file",
                     log->path, key, a ? a : "?", b ? b : "?");
        is_free(a);
        is_free(b);
        return st;
    }
    return is_fail(INFERSCALE_E_INVALID,
                   "%s holds results of another version of this program; give another "
                   "file",
                   log->path);
}

static is_status check_header(const accuracy_log *log, json_t *line, json_t *configuration,
                              const accuracy *a)
{
    json_t *there = json_object_get(line, "configuration"), *arms = json_object_get(line, "arms");
    bool same;

    if (!json_is_object(there) || !json_is_array(arms))
        return is_fail(INFERSCALE_E_PARSE,
                       "the first line of %s says of no configuration; give another "
                       "file",
                       log->path);
    same = json_integer_value(json_object_get(line, "version")) == VERSION &&
           json_equal(there, configuration) && json_array_size(arms) == a->n_arms;
    for (size_t i = 0; same && i < a->n_arms; i++) {
        const char *name = json_string_value(json_array_get(arms, i));

        same = name && strcmp(name, a->arms[i].name) == 0;
    }
    return same ? INFERSCALE_OK : differs(log, there, configuration);
}

/* Is this the beginning of a first line that we wrote? */
static bool is_ours(const uint8_t *text, size_t n)
{
    const size_t all = sizeof mark - 1;

    return memcmp(text, mark, n < all ? n : all) == 0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static double number(json_t *j) { return json_is_number(j) ? json_number_value(j) : NAN; }

static bool read_mark(json_t *j, accuracy_mark *m)
{
    json_t *choice = json_array_get(j, 3), *judged = json_array_get(j, 4);

    *m = (accuracy_mark){ .choice = -1, .judged = -1 };
    if (json_is_null(j)) return true;
    if (json_array_size(j) != MARKS || !json_is_integer(json_array_get(j, 0))) return false;
    m->asked = true;
    m->right = json_integer_value(json_array_get(j, 0)) != 0;
    m->f1 = number(json_array_get(j, 1));
    m->nll = number(json_array_get(j, 2));
    if (json_is_number(choice)) m->choice = json_number_value(choice) != 0;
    if (json_is_number(judged)) m->judged = json_number_value(judged) != 0;
    return true;
}

static bool read_question(json_t *line, const quiz *q, const accuracy *a, accuracy_question *r)
{
    const char *type = json_string_value(json_object_get(line, "type"));
    json_t *marks = json_object_get(line, "marks"), *index = json_object_get(line, "index");

    *r = (accuracy_question){ .type = QUIZ_TYPES,
                              .recall = number(json_object_get(line, "recall")) };
    for (uint32_t i = 0; type && i < q->n_types; i++)
        if (strcmp(type, q->types[i]) == 0) r->type = i;
    if (r->type == QUIZ_TYPES || json_array_size(marks) != a->n_arms) return false;
    if (!json_is_integer(index) || json_integer_value(index) != (json_int_t)a->n) return false;
    for (size_t i = 0; i < a->n_arms; i++)
        if (!read_mark(json_array_get(marks, i), &r->marks[i])) return false;
    return true;
}

static is_status take_line(accuracy_log *log, const char *text, size_t n, size_t number_of_line,
                           json_t *configuration, const quiz *q, accuracy *a)
{
    json_t *line = json_loadb(text, n, 0, NULL);
    accuracy_question *more;
    is_status st = INFERSCALE_OK;

    if (line && number_of_line == 1) {
        st = check_header(log, line, configuration, a);
    } else {
        more = is_realloc(a->questions, (a->n + 1) * sizeof *more);
        if (more) a->questions = more;
        if (more == NULL) st = no_memory();
        else if (line && read_question(line, q, a, &more[a->n])) a->n++;
        else
            st = is_fail(INFERSCALE_E_PARSE,
                         "line %zu of %s is no result of question %zu; remove this line and those "
                         "after it, or give another file",
                         number_of_line, log->path, a->n);
    }
    json_decref(line);
    return st;
}

static is_status read_all(accuracy_log *log, json_t *configuration, const quiz *q, accuracy *a)
{
    uint8_t *text = NULL;
    size_t n = 0, line = 0;
    is_status st = is_file_read_all(is_fs_posix(), log->path, FILE_MOST, &text, &n);

    if (st == INFERSCALE_OK && !is_ours(text, n))
        st = is_fail(INFERSCALE_E_PARSE,
                     "%s is no file of results of `eval accuracy`; give another "
                     "name",
                     log->path);
    for (size_t at = 0; st == INFERSCALE_OK && at < n;) {
        const uint8_t *end = memchr(text + at, '\n', n - at);

        if (end == NULL) break; /* torn */
        st = take_line(log, (const char *)text + at, (size_t)(end - text) - at, ++line,
                       configuration, q, a);
        at = (size_t)(end - text) + 1;
        log->end = (off_t)at;
    }
    is_free(text);
    if (st == INFERSCALE_OK && ftruncate(log->fd, log->end) != 0)
        st = is_fail_errno("cannot cut the torn last line off %s; give another file", log->path);
    if (st == INFERSCALE_OK && line == 0) st = begin(log, configuration, a);
    return st;
}

is_status accuracy_log_open(const char *path, json_t *configuration, const quiz *q, accuracy *a,
                            accuracy_log **out)
{
    accuracy_log *log = is_calloc(1, sizeof *log);
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (log == NULL) return no_memory();
    log->path = is_strdup(path);
    log->fd = log->path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (log->path == NULL) st = no_memory();
    else if (log->fd < 0)
        st = is_fail_errno("cannot open %s for results; give a file that can be written", path);
    else if (flock(log->fd, LOCK_EX | LOCK_NB) != 0)
        st = is_fail(INFERSCALE_E_BUSY,
                     "another run is writing to %s; wait for it, or give another file", path);
    if (st == INFERSCALE_OK) st = read_all(log, configuration, q, a);
    if (st != INFERSCALE_OK) accuracy_log_close(log);
    else *out = log;
    return st;
}
