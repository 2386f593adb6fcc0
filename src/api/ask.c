/* ask.c - one question, one answer. */
#include "api/answer.h"

enum { TRIES = 5 };

/* The plan stays until the answer is over: it says then what of it was used. */
static is_status run_once(is_asking *a, is_planned **planned, is_run **run)
{
    bool fresh = false;
    is_status st;

    is_asking_again(a);
    st = is_asking_plan(a, planned);
    if (st == INFERSCALE_OK) st = is_asking_fresh(a, *planned, &fresh);
    if (st == INFERSCALE_OK) st = fresh ? is_asking_run(a, *planned, run) : is_fail(INFERSCALE_E_STALE, "the memory changed; plan again");
    return st;
}

/* Plans, and plans again if the memory changed before the first token was out: what is used is what the memory holds then. */
static is_status answer(is_asking *a)
{
    IS_TRY(is_asking_embed(a));
    for (int i = 0; i < TRIES; i++) {
        is_planned *planned = NULL;
        is_run *run = NULL;
        int32_t pending;
        is_status st = run_once(a, &planned, &run);

        if (st == INFERSCALE_OK) st = is_asking_generate(a, run, &pending);
        is_engine_finish(a->is->engine, run);
        is_planned_free(planned);
        if (st != INFERSCALE_E_STALE) return st;
    }
    return is_fail(INFERSCALE_E_STALE, "the memory changed %d times while the question was planned; ask again", TRIES);
}

is_status inferscale_ask(inferscale *is, const inferscale_scope *scope, const char *question, const inferscale_ask_options *options,
                         inferscale_answer **out)
{
    is_asking a;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the answer; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    IS_TRY(is_scope_check(scope));
    st = is_asking_begin(&a, is, scope, question, options);
    if (st == INFERSCALE_OK) st = answer(&a);
    if (st == INFERSCALE_OK) st = is_asking_finish(&a, out);
    is_asking_free(&a);
    return st;
}
