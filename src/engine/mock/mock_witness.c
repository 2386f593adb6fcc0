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
    if (m->opt.steps[0]) m->steps_fd = open(m->opt.steps, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (m->opt.steps[0] && m->steps_fd < 0) return is_fail_errno("mock: cannot write the file of steps %s", m->opt.steps);
    if (!m->opt.witness[0]) return INFERSCALE_OK;
    m->witness_fd = open(m->opt.witness, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (m->witness_fd < 0) return is_fail_errno("mock: cannot write the witness's file %s", m->opt.witness);
    end_torn_line(m);
    return INFERSCALE_OK;
}

void mock_witness_close(mock *m)
{
    if (m->witness_fd >= 0) close(m->witness_fd);
    if (m->steps_fd >= 0) close(m->steps_fd);
    m->witness_fd = m->steps_fd = -1;
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

static void say_to(int fd, is_buf *b)
{
    ssize_t done;

    is_buf_u8(b, '\n');
    if (is_buf_ok(b)) {
        do done = write(fd, b->data, b->len);
        while (done < 0 && errno == EINTR);
        if (done != (ssize_t)b->len) is_log(IS_LOG_ERROR, "mock: the witness's file could not be written");
    } else {
        is_log(IS_LOG_ERROR, "mock: no memory for the witness's line");
    }
    is_buf_free(b);
}

static void say(mock *m, is_buf *b)
{
    say_to(m->witness_fd, b);
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

/* Calls end in a step. Then, or when they are undone, they are told: one line each. */
static void told(is_run *run, const char *call, double began, const is_plan *plan)
{
    run->call = call;
    run->began = began;
    run->told_plan = plan;
}

is_status mock_seen_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_begin(m, plan, opts, run);

    if (m->witness_fd < 0) return st;
    if (st != INFERSCALE_OK) say_plan(m, "start", 0, began, st, NULL);
    else told(*run, "start", began, plan);
    return st;
}

is_status mock_seen_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_more(m, run, more, opts);

    if (m->witness_fd < 0) return st;
    if (st != INFERSCALE_OK) say_plan(m, "extend", run->serial, began, st, NULL);
    else told(run, "extend", began, more);
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

is_status mock_seen_token(void *impl, is_run *run, int32_t token)
{
    mock *m = impl;
    double began = is_now_ms();
    is_status st = mock_token(m, run, token);

    if (m->witness_fd < 0) return st;
    if (st != INFERSCALE_OK) say_token(m, "feed", run, began, st, NULL);
    else told(run, "feed", began, NULL);
    return st;
}

static void tell(mock *m, is_run *run, is_status st)
{
    const char *call = run->call;

    run->call = NULL;
    if (m->witness_fd < 0 || !call) return;
    if (!run->told_plan) {
        say_token(m, call, run, run->began, st, st == INFERSCALE_OK ? &run->token : NULL);
        return;
    }
    if (!run->serial && st == INFERSCALE_OK) run->serial = atomic_fetch_add(&n_runs, 1) + 1;
    say_plan(m, call, run->serial, run->began, st, st == INFERSCALE_OK ? run->told_plan : NULL);
}

void mock_seen_step(void *impl, is_lane *lanes, size_t n)
{
    mock *m = impl;
    is_buf b = IS_BUF_INIT;

    mock_step(m, lanes, n);
    for (size_t i = 0; i < n; i++) {
        if (m->steps_fd >= 0) is_buf_fmt(&b, "%u:%u%s ", lanes[i].run->number, lanes[i].n_computed, lanes[i].done ? "+" : "");
        if (lanes[i].done || lanes[i].status != INFERSCALE_OK) tell(m, lanes[i].run, lanes[i].status);
    }
    if (m->steps_fd >= 0) say_to(m->steps_fd, &b);
}

void mock_seen_undo(void *impl, is_run *run)
{
    tell(impl, run, INFERSCALE_E_CANCELLED);
    mock_undo(impl, run);
}

is_status mock_seen_sample(void *impl, is_run *run, int32_t *token)
{
    double began = is_now_ms();
    is_status st = mock_sample(impl, run, token);

    say_token(impl, "sample", run, began, st, NULL);
    return st;
}
