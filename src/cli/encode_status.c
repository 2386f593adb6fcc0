/* encode_status.c - `inferscale encode --status` and `--wait`: what waits for embeddings and KV, and waiting until nothing does. */
#include <stdio.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/encode_status.h"
#include "cli/out.h"
#include "cli/store.h"
#include "exchange/json.h"

json_t *cli_encoder_json(const inferscale_encoder_state *s) { return is_encoder_json(s); }

/* Of an encoder of one's own (encode --wait); that of a server is at GET /inferscale/encode. */
static void print_share(const inferscale_encoder_state *s)
{
    char slices[64], pauses[64];

    if (s->share > 0) printf("While questions are open it has %.0f %% of the time.\n", 100 * s->share);
    if (s->n_slices + s->n_pauses + s->n_drops == 0) return;
    printf("Beside questions: %s of %.1f s in all, %s, %llu dropped.\n", cli_n_of(s->n_slices, "slice", slices), s->shared_s,
           cli_n_of(s->n_pauses, "pause", pauses), (unsigned long long)s->n_drops);
}

static void print_state(const inferscale_encoder_state *s)
{
    char items[64], facts[64];

    printf("%s %s for an embedding, %s for KV%s", cli_n_of(s->n_unembedded, "item", items), s->n_unembedded == 1 ? "waits" : "wait",
           cli_n_of(s->n_unencoded, "fact", facts), s->model_known ? "" : " of any model (none could be loaded)");
    if (s->n_unrefined) printf(", %llu for the second stage", (unsigned long long)s->n_unrefined);
    printf(".\n");
    if (s->lag_s > 0) printf("The oldest has waited for %.0f s.\n", s->lag_s);
    print_share(s);
    if (s->n_wide) {
        char size[32], n[64];

        cli_size(s->wide_bytes, size);
        printf("%s (%s) %s to be stored in fewer bytes; `inferscale encode` does it, or a server in idle time.\n",
               cli_n_of(s->n_wide, "segment", n), size, s->n_wide == 1 ? "waits" : "wait");
    }
    if (s->n_passed) printf("Too long for the model, and served as text: %llu.\n", (unsigned long long)s->n_passed);
    if (s->last_error[0]) printf("Last failure: %s\n", s->last_error);
}

/* The scope that was given; NULL = none was: the whole store. */
static const inferscale_scope *scope_of(const cli_args *a, inferscale_scope *scope)
{
    cli_scope_given(a, scope);
    return scope->user || scope->agent || scope->run || scope->app ? scope : NULL;
}

static int report(const cli_args *a, inferscale *is, const inferscale_scope *scope)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_status st = inferscale_encode_status(is, scope, &s);

    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_wants_json(a)) return cli_print_json(cli_encoder_json(&s));
    print_state(&s);
    return CLI_OK;
}

int cli_encode_status(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_model_info info;
    int rc = cli_open(a, &is);

    if (rc != CLI_OK) return rc;
    if (inferscale_model(is, &info) != INFERSCALE_OK) fprintf(stderr, "%s\n", inferscale_error()); /* counted for any model then */
    rc = report(a, is, scope_of(a, &scope));
    inferscale_close(is);
    return rc;
}

/* In steps, so that Ctrl-C ends it and the progress can be shown. */
static inferscale_status wait_for_it(inferscale *is, const inferscale_scope *scope, double timeout_s)
{
    const double t0 = is_now_ms();
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_status st = INFERSCALE_E_BUSY;
    uint64_t total = 0;
    cli_progress p;

    cli_progress_start(&p, "Encoding", 0);
    while (st == INFERSCALE_E_BUSY && !*cli_interrupt() && (timeout_s < 0 || is_now_ms() - t0 < timeout_s * 1000)) {
        st = inferscale_encode_wait(is, scope, 300);
        if (st != INFERSCALE_E_BUSY || inferscale_encode_status(is, scope, &s) != INFERSCALE_OK) continue;
        if (s.n_unembedded + s.n_unencoded > total) total = s.n_unembedded + s.n_unencoded;
        cli_progress_at(&p, total - s.n_unembedded - s.n_unencoded, total, s.n_unembedded ? "embedding" : "encoding");
    }
    cli_progress_end(&p);
    return st;
}

int cli_encode_wait(const cli_args *a)
{
    const double timeout_s = cli_num(a, "--timeout", -1, 0, 1e9);
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_status st;
    int rc = cli_open_background(a, &is);

    if (rc != CLI_OK) return rc;
    st = wait_for_it(is, scope_of(a, &scope), timeout_s);
    rc = st == INFERSCALE_OK ? report(a, is, scope_of(a, &scope)) : cli_fail_as(a, st);
    inferscale_close(is);
    return rc;
}
