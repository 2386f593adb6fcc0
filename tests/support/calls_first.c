/* calls_first.c - see calls_first.h. */
#include "support/calls_first.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/scratch.h"

void first_opts_init(first_opts *o, const char *home, const char *plugins)
{
    *o = (first_opts){ .open = INFERSCALE_OPTIONS_INIT, .recall = INFERSCALE_RECALL_OPTIONS_INIT, .ask = INFERSCALE_ASK_OPTIONS_INIT,
                       .complete = INFERSCALE_COMPLETE_OPTIONS_INIT, .encode = INFERSCALE_ENCODE_OPTIONS_INIT,
                       .forget = INFERSCALE_FORGET_OPTIONS_INIT, .fsck = INFERSCALE_FSCK_OPTIONS_INIT, .gc = INFERSCALE_GC_OPTIONS_INIT,
                       .backup = INFERSCALE_BACKUP_OPTIONS_INIT, .restore = INFERSCALE_RESTORE_OPTIONS_INIT,
                       .rebuild = INFERSCALE_REBUILD_OPTIONS_INIT };
    o->open.home = home;
    o->open.engine = "mock";
    o->open.plugin_dir = plugins;
    o->ask.max_tokens = 4;
    o->complete.ask.max_tokens = 4;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

#define CALL(name) static inferscale_status name(first *f, first_opts *o)

static const inferscale_fact a_fact = { .text = "A fact that came first." };

CALL(remember) { (void)o; return inferscale_remember(f->is, &f->scope, &a_fact, 1, NULL); }
CALL(update) { (void)o; return inferscale_update(f->is, &f->scope, f->id, &a_fact); }
CALL(supersede) { (void)o; return inferscale_supersede(f->is, &f->scope, f->id, &a_fact, NULL); }
CALL(pin) { (void)o; return inferscale_pin(f->is, &f->scope, f->id, 1); }
CALL(forget) { (void)o; return inferscale_forget(f->is, &f->scope, &f->id, 1, NULL); }
CALL(forget_all) { (void)o; return inferscale_forget_all(f->is, &f->scope, NULL); }
CALL(encode) { return inferscale_encode(f->is, &f->scope, &o->encode); }
CALL(encode_wait) { (void)o; (void)f; return inferscale_encode_wait(f->is, &f->scope, 100) == INFERSCALE_E_INTERNAL ? INFERSCALE_E_INTERNAL : INFERSCALE_OK; }
CALL(gc) { return inferscale_gc(f->is, &o->gc); }
CALL(rebuild) { return inferscale_rebuild(f->is, &f->scope, &o->rebuild); }
CALL(notice) { (void)o; return inferscale_notice(f->is) ? INFERSCALE_OK : INFERSCALE_E_INTERNAL; }
CALL(stop_loading) { (void)o; inferscale_stop_loading(f->is); return INFERSCALE_OK; }

CALL(add_turns)
{
    const inferscale_turn t = { .text = "What was said first." };

    (void)o;
    return inferscale_add_turns(f->is, &f->scope, &t, 1, NULL);
}

CALL(forget_with)
{
    inferscale_forget_report r;
    const bool by_scope = o->forget.all || o->forget.expired;

    return inferscale_forget_with(f->is, &f->scope, by_scope ? NULL : &f->id, !by_scope, &o->forget, &r);
}

/* The list by its place: a call's arguments are evaluated in no order. */
static inferscale_status list(inferscale_status st, inferscale_list **l)
{
    inferscale_list_free(*l);
    return st;
}

CALL(recall) { inferscale_list *l = NULL; return list(inferscale_recall(f->is, &f->scope, "What came first?", &o->recall, &l), &l); }
CALL(ls) { inferscale_list *l = NULL; (void)o; return list(inferscale_ls(f->is, &f->scope, 0, 0, 0, &l), &l); }
CALL(show) { inferscale_list *l = NULL; (void)o; return list(inferscale_show(f->is, &f->scope, f->id, &l), &l); }

CALL(whose)
{
    inferscale_owner owner;

    (void)o;
    return inferscale_whose(f->is, f->id, &owner);
}

CALL(encode_status)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    (void)o;
    return inferscale_encode_status(f->is, &f->scope, &s);
}

static inferscale_status answered(inferscale_status st, inferscale_answer **a)
{
    inferscale_answer_free(*a);
    return st;
}

CALL(ask)
{
    inferscale_answer *a = NULL;

    o->ask.recall = &o->recall;
    return answered(inferscale_ask(f->is, &f->scope, "What came first?", &o->ask, &a), &a);
}

CALL(dry_run)
{
    inferscale_preview *p = NULL;
    inferscale_status st = inferscale_dry_run(f->is, &f->scope, "What came first?", &o->ask, &p);

    inferscale_preview_free(p);
    return st;
}

CALL(chat_open)
{
    inferscale_chat *c = NULL;
    inferscale_status st = inferscale_chat_open(f->is, &f->scope, &c);

    (void)o;
    inferscale_chat_close(c);
    return st;
}

CALL(chat_say)
{
    inferscale_answer *a = NULL;
    inferscale_chat *c = NULL;
    inferscale_status st = inferscale_chat_open(f->is, &f->scope, &c);

    if (st == INFERSCALE_OK) st = answered(inferscale_chat_say(c, "What came first?", &o->ask, &a), &a);
    inferscale_chat_close(c);
    return st;
}

CALL(complete)
{
    const inferscale_message m = { "user", "What came first?" };
    inferscale_answer *a = NULL;

    return answered(inferscale_complete(f->is, &f->scope, &m, !o->no_messages, &o->complete, &a), &a);
}

CALL(tokenize)
{
    int32_t *ids = NULL;
    size_t n;
    inferscale_status st = inferscale_tokenize(f->is, "What came first?", &ids, &n);

    (void)o;
    inferscale_tokens_free(ids);
    return st;
}

static const char *const texts[] = { "What came first?" };

CALL(embed)
{
    float *v = NULL;
    uint32_t dim;
    inferscale_status st = inferscale_embed(f->is, texts, 1, &v, &dim);

    (void)o;
    inferscale_vectors_free(v);
    return st;
}

CALL(embed_whole)
{
    float *v = NULL;
    uint32_t dim;
    inferscale_status st = inferscale_embed_whole(f->is, texts, 1, 0, NULL, &v, &dim, NULL);

    (void)o;
    inferscale_vectors_free(v);
    return st;
}

CALL(model)
{
    inferscale_model_info i;

    (void)o;
    return inferscale_model(f->is, &i);
}

CALL(store)
{
    inferscale_store_info i;

    (void)o;
    return inferscale_store(f->is, 1, &i);
}

CALL(fsck)
{
    inferscale_fsck_report *r = NULL;
    inferscale_status st = inferscale_fsck(f->is, &o->fsck, &r);

    inferscale_fsck_free(r);
    return st;
}

CALL(backup) { return inferscale_backup(f->is, scratch_path(f->folder, "backup"), &o->backup); }

CALL(restore)
{
    inferscale_status st = inferscale_backup(f->is, scratch_path(f->folder, "backup"), NULL);

    if (st != INFERSCALE_OK) return st;
    return inferscale_restore(scratch_path(f->folder, "backup"), scratch_path(f->folder, "restored"), &o->restore);
}

CALL(usage)
{
    inferscale_usage_report *r = NULL;
    inferscale_status st = inferscale_usage(f->is, NULL, &r);

    (void)o;
    inferscale_usage_free(r);
    return st;
}

#define ROW(name, structs, engine) { "inferscale_" #name, structs, name, engine }

const first_call first_calls[] = {
    ROW(remember, "", false), ROW(add_turns, "", false), ROW(update, "", false), ROW(supersede, "", false), ROW(pin, "", false),
    ROW(forget, "", false), ROW(forget_all, "", false), ROW(forget_with, "forget ", false), ROW(recall, "recall ", false), ROW(ls, "", false),
    ROW(show, "", false), ROW(whose, "", false), ROW(encode, "encode ", true), ROW(encode_status, "", false), ROW(encode_wait, "", false),
    ROW(ask, "ask recall ", true), ROW(dry_run, "ask ", true), ROW(chat_open, "", false), ROW(chat_say, "ask ", true),
    ROW(complete, "complete ", true), ROW(tokenize, "", true), ROW(embed, "", false), ROW(embed_whole, "", false), ROW(model, "", true),
    ROW(store, "", false), ROW(fsck, "fsck ", false), ROW(gc, "gc ", true), ROW(backup, "backup ", false), ROW(restore, "restore ", false),
    ROW(usage, "", false), ROW(rebuild, "rebuild ", true), ROW(notice, "", false), ROW(stop_loading, "", false),
};
const size_t n_first_calls = sizeof first_calls / sizeof *first_calls;

#define NAME(name) "inferscale_" #name

const char *const first_no_store[] = {
    NAME(open), NAME(close), NAME(chat_close), NAME(answer_free), NAME(error), NAME(fallback_name), NAME(fsck_free), NAME(hash), NAME(kv_close),
    NAME(kv_forget), NAME(kv_load_close), NAME(list_free), NAME(preview_free), NAME(segment_close), NAME(segment_planes),
    NAME(segment_token_ids), NAME(segment_tokens), NAME(status_meaning), NAME(status_name), NAME(ticket_free), NAME(ticket_text_free),
    NAME(usage_free), NAME(tokens_free), NAME(vectors_free), NAME(version), NAME(segment_open), NAME(segment_plane), NAME(segment_read),
    NAME(kv_open), NAME(kv_geometry), NAME(kv_match), NAME(kv_write), NAME(kv_check), NAME(kv_load_open), NAME(kv_load_read),
    NAME(ticket_write), NAME(ticket_read), NULL,
};

/* ---- Options ------------------------------------------------------------------------------------------------------------- */

static int go_on(void *ctx, const char *text, size_t len)
{
    (void)ctx;
    (void)text;
    return len == 0;
}

static int progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    (void)ctx;
    (void)done;
    (void)total;
    return what == NULL;
}

static int on_token(void *ctx, const inferscale_token *t)
{
    (void)ctx;
    return t == NULL;
}

static void on_plan(void *ctx, const inferscale_answer *a)
{
    (void)ctx;
    (void)a;
}

static void on_accepted(void *ctx) { (void)ctx; }

static void on_loading(void *ctx, int loading, const char *what, const char *name)
{
    (void)ctx;
    (void)loading;
    (void)what;
    (void)name;
}

static void on_log(void *ctx, int level, const char *message)
{
    (void)ctx;
    (void)level;
    (void)message;
}

static const volatile int never = 0;
static int64_t unknown[1];
static size_t n_unknown;
static const int64_t ids[] = { 4 };
static const char *const stops[] = { "no such thing" };
static const inferscale_bias biases[] = { { 100, -1 }, { 101, INFINITY }, { 102, -INFINITY } };
static const inferscale_recall_options by_words = { .struct_size = sizeof by_words, .method = INFERSCALE_LEXICAL };

/* X(struct, field, the field in first_opts, value, status on a filled store) */
#define OPTIONS_MAP(X)                                                                                                         \
    X(open, home, open.home, o->open.home, OK)                                                                                 \
    X(open, model, open.model, "mock:id=3", OK)                                                                                \
    X(open, embedder, open.embedder, "mock:dim=8", OK)                                                                         \
    X(open, embedder_key, open.embedder_key, "key", OK)                                                                        \
    X(open, engine, open.engine, "mock", OK)                                                                                   \
    X(open, plugin_dir, open.plugin_dir, o->open.plugin_dir, OK)                                                               \
    X(open, system, open.system, "Answer like a pirate.", OK)                                                                  \
    X(open, policy, open.policy, "header", OK)                                                                                 \
    X(open, policy, open.policy, "alone", OK)                                                                                  \
    X(open, policy, open.policy, "near:2", OK)                                                                                 \
    X(open, codec, open.codec, "f32", OK)                                                                                      \
    X(open, codec, open.codec, "bf16", OK)                                                                                     \
    X(open, n_ctx, open.n_ctx, 2048, OK)                                                                                       \
    X(open, n_threads, open.n_threads, 1, OK)                                                                                  \
    X(open, flash_attention, open.flash_attention, INFERSCALE_FA_ON, OK)                                                       \
    X(open, flash_attention, open.flash_attention, INFERSCALE_FA_OFF, OK)                                                      \
    X(open, ram_bytes, open.ram_bytes, 1, OK)                                                                                  \
    X(open, read_only, open.read_only, 1, OK)                                                                                  \
    X(open, background, open.background, 1, OK)                                                                                \
    X(open, max_pending, open.max_pending, 1, OK)                                                                              \
    X(open, on_log, open.on_log, on_log, OK)                                                                                   \
    X(open, log_ctx, open.log_ctx, o, OK)                                                                                      \
    X(open, refine, open.refine, "none", OK)                                                                                   \
    X(open, refine, open.refine, "company:3", OK)                                                                              \
    X(open, n_parallel, open.n_parallel, 1, OK)                                                                                \
    X(open, upstream, open.upstream, NULL, OK)                                                                                 \
    X(open, upstream_key, open.upstream_key, "key", OK)                                                                        \
    X(open, embedder_wait_ms, open.embedder_wait_ms, 50, OK)                                                                   \
    X(open, start_empty, open.start_empty, 1, OK)                                                                              \
    X(open, encode_lag_s, open.encode_lag_s, -1, OK)                                                                           \
    X(open, encode_share, open.encode_share, 0.2, OK)                                                                          \
    X(open, encode_share_most, open.encode_share_most, 0.9, OK)                                                                \
    X(open, question_embed_ms, open.question_embed_ms, -1, OK)                                                                 \
    X(open, question_embed_texts, open.question_embed_texts, 1, OK)                                                            \
    X(open, on_loading, open.on_loading, on_loading, OK)                                                                       \
    X(open, loading_ctx, open.loading_ctx, o, OK)                                                                              \
    X(recall, k, recall.k, 1000, OK)                                                                                           \
    X(recall, kinds, recall.kinds, INFERSCALE_TURNS, OK)                                                                       \
    X(recall, kinds, recall.kinds, INFERSCALE_FACTS | INFERSCALE_TURNS, OK)                                                    \
    X(recall, method, recall.method, INFERSCALE_LEXICAL, OK)                                                                   \
    X(recall, method, recall.method, INFERSCALE_DENSE, OK)                                                                     \
    X(recall, has_threshold, recall.has_threshold, 1, OK)                                                                      \
    X(recall, threshold, recall.threshold, 0.9, OK)                                                                            \
    X(recall, from, recall.from, 1000000000, OK)                                                                               \
    X(recall, to, recall.to, 1000000000, OK)                                                                                   \
    X(recall, as_of, recall.as_of, 1000000000, OK)                                                                             \
    X(recall, metadata, recall.metadata, "{\"a\":1}", OK)                                                                      \
    X(ask, mode, ask.mode, INFERSCALE_MODE_TEXT, OK)                                                                           \
    X(ask, mode, ask.mode, INFERSCALE_MODE_NONE, OK)                                                                           \
    X(ask, k, ask.k, 1000, OK)                                                                                                 \
    X(ask, repair, ask.repair, 1, OK)                                                                                          \
    X(ask, max_tokens, ask.max_tokens, 1, OK)                                                                                  \
    X(ask, temperature, ask.temperature, 0.7, OK)                                                                              \
    X(ask, top_k, ask.top_k, 4, OK)                                                                                            \
    X(ask, top_p, ask.top_p, 0.9, OK)                                                                                          \
    X(ask, min_p, ask.min_p, 0.1, OK)                                                                                          \
    X(ask, seed, ask.seed, 7, OK)                                                                                              \
    X(ask, recall, ask.recall, &by_words, OK)                                                                                  \
    X(ask, on_text, ask.on_text, go_on, OK)                                                                                    \
    X(ask, text_ctx, ask.text_ctx, o, OK)                                                                                      \
    X(ask, cancel, ask.cancel, &never, OK)                                                                                     \
    X(ask, stage, ask.stage, INFERSCALE_STAGE_FIRST, OK)                                                                       \
    X(ask, stage, ask.stage, INFERSCALE_STAGE_REFINE, OK)                                                                      \
    X(complete, ask, complete.ask.temperature, 1, OK)                                                                          \
    X(complete, layout, complete.layout, INFERSCALE_LAYOUT_FRONT, OK)                                                          \
    X(complete, ids, complete.ids, ids, OK)                                                                                    \
    X(complete, n_ids, complete.n_ids, (o->complete.ids = ids, 1), OK)                                                         \
    X(complete, prompt, complete.prompt, (o->no_messages = true, "Once upon a time"), OK)                                      \
    X(complete, stop, complete.stop, stops, OK)                                                                                \
    X(complete, n_stop, complete.n_stop, (o->complete.stop = stops, 1), OK)                                                    \
    X(complete, logprobs, complete.logprobs, 1, OK)                                                                            \
    X(complete, top_logprobs, complete.top_logprobs, (o->complete.logprobs = 1, 3), OK)                                        \
    X(complete, presence_penalty, complete.presence_penalty, 1, OK)                                                            \
    X(complete, frequency_penalty, complete.frequency_penalty, -1, OK)                                                         \
    X(complete, bias, complete.bias, biases, OK)                                                                               \
    X(complete, n_bias, complete.n_bias, (o->complete.bias = biases, 1), OK)                                                   \
    X(complete, grammar, complete.grammar, "root ::= \"yes\" | \"no\"", E_UNSUPPORTED) /* the mock */                                  \
    X(complete, on_full, complete.on_full, 1, OK)                                                                              \
    X(complete, on_token, complete.on_token, (o->complete.logprobs = 1, on_token), OK)                                         \
    X(complete, token_ctx, complete.token_ctx, o, OK)                                                                          \
    X(complete, on_plan, complete.on_plan, on_plan, OK)                                                                        \
    X(complete, plan_ctx, complete.plan_ctx, o, OK)                                                                            \
    X(complete, cache_salt, complete.cache_salt, "salt", OK)                                                                   \
    X(complete, on_accepted, complete.on_accepted, on_accepted, OK)                                                            \
    X(complete, accepted_ctx, complete.accepted_ctx, o, OK)                                                                    \
    X(complete, endless, complete.endless, 1, OK)                                                                              \
    X(encode, policy, encode.policy, "header", OK)                                                                             \
    X(encode, policy, encode.policy, "near:2", OK)                                                                             \
    X(encode, again, encode.again, 1, OK)                                                                                      \
    X(encode, on_progress, encode.on_progress, progress, OK)                                                                   \
    X(encode, progress_ctx, encode.progress_ctx, o, OK)                                                                        \
    X(encode, stage, encode.stage, INFERSCALE_STAGE_REFINE, OK)                                                                \
    X(encode, stage, encode.stage, INFERSCALE_STAGE_ALL, OK)                                                                   \
    X(encode, refine, encode.refine, "none", OK)                                                                               \
    X(encode, refine, encode.refine, "company:2", OK)                                                                          \
    X(forget, all, forget.all, 1, OK)                                                                                          \
    X(forget, expired, forget.expired, 1, OK)                                                                                  \
    X(forget, with_turns, forget.with_turns, 1, OK)                                                                            \
    X(forget, with_facts, forget.with_facts, 1, OK)                                                                            \
    X(forget, prove, forget.prove, 1, OK)                                                                                      \
    X(forget, wait_ms, forget.wait_ms, 50, OK)                                                                                 \
    X(forget, on_progress, forget.on_progress, progress, OK)                                                                   \
    X(forget, progress_ctx, forget.progress_ctx, o, OK)                                                                        \
    X(forget, unknown, forget.unknown, unknown, OK)                                                                            \
    X(forget, n_unknown, forget.n_unknown, &n_unknown, OK)                                                                     \
    X(fsck, repair, fsck.repair, 1, OK)                                                                                        \
    X(fsck, quick, fsck.quick, 1, OK)                                                                                          \
    X(fsck, on_progress, fsck.on_progress, progress, OK)                                                                       \
    X(fsck, progress_ctx, fsck.progress_ctx, o, OK)                                                                            \
    X(gc, keep, gc.keep, "current", OK)                                                                                        \
    X(gc, keep, gc.keep, "policy:header", OK)                                                                                  \
    X(gc, max_bytes, gc.max_bytes, 1, OK)                                                                                      \
    X(gc, compact, gc.compact, 1, OK)                                                                                          \
    X(gc, dry_run, gc.dry_run, 1, OK)                                                                                          \
    X(gc, on_progress, gc.on_progress, progress, OK)                                                                           \
    X(gc, progress_ctx, gc.progress_ctx, o, OK)                                                                                \
    X(backup, no_vault, backup.no_vault, 1, OK)                                                                                \
    X(backup, link, backup.link, 1, OK)                                                                                        \
    X(backup, on_progress, backup.on_progress, progress, OK)                                                                   \
    X(backup, progress_ctx, backup.progress_ctx, o, OK)                                                                        \
    X(restore, verify_only, restore.verify_only, 1, OK)                                                                        \
    X(restore, on_progress, restore.on_progress, progress, OK)                                                                 \
    X(restore, progress_ctx, restore.progress_ctx, o, OK)                                                                      \
    X(rebuild, what, rebuild.what, INFERSCALE_REBUILD_EMBEDDINGS, OK)                                                          \
    X(rebuild, what, rebuild.what, INFERSCALE_REBUILD_INDEX, OK)                                                               \
    X(rebuild, what, rebuild.what, INFERSCALE_REBUILD_KV, OK)                                                                  \
    X(rebuild, on_progress, rebuild.on_progress, progress, OK)                                                                 \
    X(rebuild, progress_ctx, rebuild.progress_ctx, o, OK)

void first_set(first_opts *o, size_t option)
{
    size_t i = 0;

#define SET(in_, field_, at, value_, want_)                                                                                    \
    if (i++ == option) o->at = value_;
    OPTIONS_MAP(SET)
#undef SET
}

#define ROW_OF(in_, field_, at, value_, want_) { .in = #in_, .field = #field_, .value = #value_, .want = INFERSCALE_##want_ },
const first_option first_options[] = { OPTIONS_MAP(ROW_OF) };
const size_t n_first_options = sizeof first_options / sizeof *first_options;
