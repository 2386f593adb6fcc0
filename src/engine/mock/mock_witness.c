/* mock_witness.c - a witness for tests: which texts did the engine compute on, and when?
 *
 * One line a call, appended to the file that the option witness=FILE names, written at once, so that threads and processes may share
 * the file:   CALL PID RUN BEGAN ENDED STATUS TEXT
 * CALL: capture, start, extend, sample, feed. RUN: number of the live sequence in its process, 0 for captures. BEGAN, ENDED:
 * CLOCK_MONOTONIC in milliseconds. STATUS: its number. TEXT: of the tokens that the call added (sample: none), control characters as
 * spaces; what a run holds is the text of all its lines, in order. A capture has one line a span: names of the segments whose rows were
 * taken for the end of the context, then 0x1e, the context, 0x1f, the span; and after 0x1d each the token ids of both, in decimal. */
#include "engine/mock/mock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

enum { IDS_MARK = 0x1d, STORED_MARK = 0x1e, SPAN_MARK = 0x1f };

static atomic_ulong n_runs;

/* A process killed while it wrote leaves the beginning of a line; the next one must not run on in it. */
static void end_torn_line(const mock *m)
{
    static const char mark[] = " TORN\n";
    int fd = open(m->opt.witness, O_RDONLY | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    char last = '\n';

    if (size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n' && write(m->witness_fd, mark, sizeof mark - 1) < 0)
        is_log(IS_LOG_ERROR, "mock: the witness's file could not be written");
    if (fd >= 0) close(fd);
}

is_status mock_witness_open(mock *m)
{
    if (!m->opt.witness[0]) return INFERSCALE_OK;
    m->witness_fd = open(m->opt.witness, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (m->witness_fd < 0) return is_fail_errno("mock: cannot write the witness's file %s", m->opt.witness);
    end_torn_line(m);
    return INFERSCALE_OK;
}

void mock_witness_close(mock *m)
{
    if (m->witness_fd >= 0) close(m->witness_fd);
    m->witness_fd = -1;
}

static void add_text(is_buf *b, const int32_t *tokens, uint32_t n)
{
    char piece[8];

    for (uint32_t i = 0; i < n; i++) {
        int len = mock_token_piece(NULL, tokens[i], piece, sizeof piece);

        for (int k = 0; k < len; k++) is_buf_u8(b, (uint8_t)piece[k] < 0x20 ? ' ' : (uint8_t)piece[k]);
    }
}

static void head(is_buf *b, const char *call, unsigned long run, double began, is_status st)
{
    is_buf_fmt(b, "%s %ld %lu %.6f %.6f %d ", call, (long)getpid(), run, began, is_now_ms(), (int)st);
}

static void say(mock *m, is_buf *b)
{
    ssize_t done;

    is_buf_u8(b, '\n');
    if (is_buf_ok(b)) {
        do done = write(m->witness_fd, b->data, b->len);
        while (done < 0 && errno == EINTR);
        if (done != (ssize_t)b->len) is_log(IS_LOG_ERROR, "mock: the witness's file could not be written");
    } else {
        is_log(IS_LOG_ERROR, "mock: no memory for the witness's line");
    }
    is_buf_free(b);
}

static void say_plan(mock *m, const char *call, unsigned long run, double began, is_status st, const is_plan *plan)
{
    is_buf b = IS_BUF_INIT;

    head(&b, call, run, began, st);
    for (uint32_t i = 0; plan && i < plan->n_parts; i++)
        if (plan->parts[i].source != IS_SRC_RESIDENT) add_text(&b, plan->parts[i].tokens, plan->parts[i].n_tokens);
    say(m, &b);
}

static void add_ids(is_buf *b, const int32_t *tokens, uint32_t n)
{
    is_buf_u8(b, IDS_MARK);
    for (uint32_t i = 0; i < n; i++) is_buf_fmt(b, "%d ", tokens[i]);
}

/* Names of the segments whose rows stood in for the end of the context, in hex before the text. */
static void say_capture(mock *m, double began, is_status st, const is_capture *c)
{
    char hex[IS_HASH_HEX];
    is_buf b = IS_BUF_INIT;

    head(&b, "capture", 0, began, st);
    for (uint32_t i = 0; st == INFERSCALE_OK && i < c->n_stored; i++) {
        is_hex(is_segment_info(c->stored[i])->name, IS_HASH_BYTES, hex);
        is_buf_fmt(&b, "%s ", hex);
    }
    is_buf_u8(&b, STORED_MARK);
    if (st == INFERSCALE_OK) { /* else the tokens may be none */
        add_text(&b, c->context, c->n_context);
        is_buf_u8(&b, SPAN_MARK);
        add_text(&b, c->span, c->n_span);
        add_ids(&b, c->context, c->n_context);
        add_ids(&b, c->span, c->n_span);
    }
    say(m, &b);
}

is_status mock_seen_capture(void *impl, is_capture *c, size_t n)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_capture(m, c, n);

    for (size_t i = 0; m->witness_fd >= 0 && i < n; i++) say_capture(m, began, st, &c[i]);
    return st;
}

is_status mock_seen_start(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_start(m, plan, opts, run, stats);

    if (m->witness_fd < 0) return st;
    if (st == INFERSCALE_OK) (*run)->serial = atomic_fetch_add(&n_runs, 1) + 1;
    say_plan(m, "start", *run ? (*run)->serial : 0, began, st, st == INFERSCALE_OK ? plan : NULL);
    return st;
}

is_status mock_seen_extend(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_extend(m, run, more, opts, stats);

    if (m->witness_fd >= 0) say_plan(m, "extend", run->serial, began, st, st == INFERSCALE_OK ? more : NULL);
    return st;
}

static void say_token(mock *m, const char *call, const is_run *run, double began, is_status st, const int32_t *token)
{
    is_buf b = IS_BUF_INIT;

    if (m->witness_fd < 0) return;
    head(&b, call, run->serial, began, st);
    if (token) add_text(&b, token, 1);
    say(m, &b);
}

is_status mock_seen_sample(void *impl, is_run *run, int32_t *token)
{
    double began = is_now_ms();
    is_status st = mock_sample(impl, run, token);

    say_token(impl, "sample", run, began, st, NULL);
    return st;
}

is_status mock_seen_feed(void *impl, is_run *run, int32_t token)
{
    double began = is_now_ms();
    is_status st = mock_feed(impl, run, token);

    say_token(impl, "feed", run, began, st, st == INFERSCALE_OK ? &token : NULL);
    return st;
}
