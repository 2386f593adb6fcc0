/* lab.c - see lab.h. */
#include "eval/lab.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

static is_status make_home(char **out)
{
    const char *tmp = getenv("TMPDIR");
    is_buf b = IS_BUF_INIT;

    is_buf_fmt(&b, "%s/inferscale-lab-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    *out = is_buf_take(&b);
    if (*out == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while making a folder for the experiment");
    if (mkdtemp(*out) != NULL) return INFERSCALE_OK;
    return is_fail_errno("cannot make the folder %s; set TMPDIR to one that can be written", *out);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    (void)remove(path);
    return 0;
}

is_status lab_open(const inferscale_options *options, const char *user, lab **out)
{
    inferscale_options own = *options;
    lab *l = is_calloc(1, sizeof *l);
    is_status st;

    *out = NULL;
    if (l == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the experiment's store");
    l->shared = options->engine && strcmp(options->engine, "vllm") == 0;
    st = l->shared ? INFERSCALE_OK : make_home(&l->home);
    if (!l->shared) own.home = l->home;
    own.read_only = 0;
    if (st == INFERSCALE_OK) st = inferscale_open(&l->is, &own);
    if (st == INFERSCALE_OK) st = lab_use(l, user);
    if (st != INFERSCALE_OK) {
        lab_close(l);
        return st;
    }
    *out = l;
    return INFERSCALE_OK;
}

/* What was done for the user in a store that others have too. */
static void leave(lab *l)
{
    if (!l->shared || l->is == NULL || l->user == NULL) return;
    if (inferscale_forget_all(l->is, &l->scope, NULL) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "what was remembered for the measurement could not be forgotten (user %s): %s", l->user, is_error());
}

void lab_close(lab *l)
{
    if (l == NULL) return;
    leave(l);
    inferscale_close(l->is);
    if (l->home) nftw(l->home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    is_free(l->home);
    is_free(l->user);
    is_free(l);
}

/* A name that no user of that store has. */
static char *own_name(const char *user)
{
    is_buf b = IS_BUF_INIT;
    uint64_t salt;

    is_random(&salt, sizeof salt);
    is_buf_fmt(&b, "lab %s %016llx", user, (unsigned long long)salt);
    return is_buf_take(&b);
}

is_status lab_use(lab *l, const char *user)
{
    leave(l);
    is_free(l->user);
    l->user = l->shared ? own_name(user) : is_strdup(user);
    if (l->user == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the experiment's store");
    l->scope = (inferscale_scope){ .user = l->user };
    return is_bank_partition(l->is->bank, &l->scope, true, &l->partition);
}

is_status lab_remember(lab *l, const inferscale_fact *facts, size_t n, int64_t *ids)
{
    inferscale_event *events = is_calloc(n + 1, sizeof *events);
    is_status st;

    if (events == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while remembering %zu facts", n);
    st = is_bank_add_facts(l->is->bank, &l->partition, &l->scope, facts, n, events);
    if (st == INFERSCALE_OK) st = is_bank_partition_refresh(l->is->bank, &l->partition);
    for (size_t i = 0; ids && i < n; i++) ids[i] = events[i].id;
    is_free(events);
    return st;
}

/* The id of the turn called dia_id; 0 if there is none. */
static int64_t turn_of(const locomo_conversation *c, const int64_t *turn_ids, const char *dia_id)
{
    for (size_t i = 0; i < c->n_turns; i++)
        if (strcmp(c->turns[i].dia_id, dia_id) == 0) return turn_ids[i];
    return 0;
}

/* The text of a turn with its picture's caption, as people saw it. */
static is_status add_turns(lab *l, const locomo_conversation *c, int64_t *turn_ids)
{
    inferscale_turn *turns = is_calloc(c->n_turns + 1, sizeof *turns);
    char **texts = is_calloc(c->n_turns + 1, sizeof *texts);
    is_status st = turns && texts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while reading %s", c->id);

    for (size_t i = 0; i < c->n_turns && st == INFERSCALE_OK; i++) {
        const locomo_turn *t = &c->turns[i];
        is_buf b = IS_BUF_INIT;

        is_buf_str(&b, t->text);
        if (t->caption && t->caption[0]) is_buf_fmt(&b, " [%s]", t->caption);
        texts[i] = is_buf_take(&b);
        if (texts[i] == NULL) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while reading %s", c->id);
        turns[i] = (inferscale_turn){ .conversation = c->id, .speaker = t->speaker, .text = texts[i], .external_id = t->dia_id,
                                      .time = t->time };
    }
    if (st == INFERSCALE_OK) st = is_bank_add_turns(l->is->bank, &l->partition, &l->scope, turns, c->n_turns, turn_ids);
    for (size_t i = 0; texts && i < c->n_turns; i++) is_free(texts[i]);
    is_free(texts);
    is_free(turns);
    return st;
}

is_status lab_remember_locomo(lab *l, const locomo_conversation *c, int64_t *fact_ids)
{
    inferscale_fact *facts = is_calloc(c->n_observations + 1, sizeof *facts);
    int64_t *turn_ids = is_calloc(c->n_turns + 1, sizeof *turn_ids);
    is_status st = facts && turn_ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while reading %s", c->id);

    if (st == INFERSCALE_OK) st = add_turns(l, c, turn_ids);
    for (size_t i = 0; i < c->n_observations && st == INFERSCALE_OK; i++) {
        const locomo_observation *o = &c->observations[i];

        facts[i] = (inferscale_fact){ .text = o->text, .event_time = o->time };
        if (o->n_dia_ids > 0) facts[i].source_turn = turn_of(c, turn_ids, o->dia_ids[0]);
    }
    if (st == INFERSCALE_OK) st = lab_remember(l, facts, c->n_observations, fact_ids);
    is_free(turn_ids);
    is_free(facts);
    return st;
}

void lab_facts_free(lab_fact *facts, size_t n)
{
    for (size_t i = 0; i < n; i++) is_tokens_free(&facts[i].tokens);
}

is_status lab_facts(lab *l, const int64_t *ids, size_t n, lab_fact *out)
{
    inferscale_list *list = NULL;
    const is_realm whose = is_realm_of(&l->partition);
    is_status st = is_bank_get(l->is->bank, &l->partition, ids, n, &list);

    memset(out, 0, n * sizeof *out);
    if (st == INFERSCALE_OK && list->n != n)
        st = is_fail(INFERSCALE_E_NOTFOUND, "%zu of %zu facts are no longer there; run the experiment again", n - list->n, n);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        out[i].id = list->items[i].id;
        out[i].version = list->items[i].version;
        st = is_profile_fact(l->is->engine, &whose, &list->items[i], &out[i].tokens);
    }
    inferscale_list_free(list);
    if (st != INFERSCALE_OK) {
        lab_facts_free(out, n);
        memset(out, 0, n * sizeof *out);
    }
    return st;
}
