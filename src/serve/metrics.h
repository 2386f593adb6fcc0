/* metrics.h - counters, gauges and histograms in Prometheus' text form. One table says what there is. Thread safe. */
#ifndef IS_SERVE_METRICS_H
#define IS_SERVE_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

/* X(ID, kind, name, labels in order, help). Histograms of seconds, of tokens and of KL have their buckets in metrics.c. */
#define IS_METRICS_MAP(X)                                                                                                      \
    X(HTTP_REQUESTS, COUNTER, "inferscale_http_requests_total", "route,code", "Requests answered")                            \
    X(HTTP_SECONDS, SECONDS, "inferscale_http_request_duration_seconds", "route", "Time from a request's first byte to its reply's last") \
    X(HTTP_OPEN, GAUGE, "inferscale_http_connections", "", "Open connections")                                                \
    X(HTTP_REPLIES, GAUGE, "inferscale_http_reply_bytes", "", \
      "Bytes of replies beyond 64 KiB each that are not read yet") \
    X(HTTP_REFUSED, COUNTER, "inferscale_http_refused_total", "why", "Requests refused before they ran")                      \
    X(RUNNING, GAUGE, "inferscale_requests_running", "", "Requests that the engine is working on")                            \
    X(WAITING, GAUGE, "inferscale_requests_waiting", "", "Requests that wait for the engine")                                 \
    X(TTFT, SECONDS, "inferscale_time_to_first_token_seconds", "mode", "Question in to first token out")                      \
    X(TPOT, SECONDS, "inferscale_time_per_output_token_seconds", "mode", "Between tokens of an answer, the mean of each answer") \
    X(E2E, SECONDS, "inferscale_e2e_request_latency_seconds", "mode", "Question in to last token out")                        \
    X(FACTS, COUNTER, "inferscale_facts_used_total", "source", "Facts in prompts: stored, computed or resident")              \
    X(TOKENS_PROMPT, COUNTER, "inferscale_prompt_tokens_total", "source", "Prompt tokens: computed, injected or resident")    \
    X(TOKENS_ANSWER, COUNTER, "inferscale_generation_tokens_total", "", "Tokens generated")                                   \
    X(FALLBACKS, COUNTER, "inferscale_fallbacks_total", "why", "Answers that did less than was asked for, by reason")         \
    X(PLACEMENTS, COUNTER, "inferscale_placements_total", "what", "Turns whose memory was kept, placed anew, or lost to a change") \
    X(FINISHED, COUNTER, "inferscale_answers_total", "finish,mode", "Answers by how they ended")                              \
    X(MEMORY_OPS, COUNTER, "inferscale_memory_operations_total", "operation,result", "Memory API operations")                 \
    X(ENCODER_LAG, GAUGE, "inferscale_encoder_lag_seconds", "", "Age of the oldest item that waits for its embedding or KV")   \
    X(ENCODER_WAITING, GAUGE, "inferscale_encoder_waiting", "stage", "Items that wait: embed, first or refine")               \
    X(ENCODED, COUNTER, "inferscale_encoded_facts_total", "stage", "Facts encoded by this process")                           \
    X(ENCODER_ERRORS, COUNTER, "inferscale_encoder_errors_total", "", "Failures of the background encoder")                   \
    X(ENCODER_FIRST_LAG, GAUGE, "inferscale_encoder_first_lag_seconds", "", "How long the oldest fact has waited for its KV, as the encoder knows") \
    X(ENCODER_SHARE, GAUGE, "inferscale_encoder_share", "", "Share of the time that encoding has while a question is open; 0 = it waits") \
    X(ENCODER_SHARED, COUNTER, "inferscale_encoder_shared_seconds_total", "", "Time of encoding while a question was open") \
    X(ENCODER_QUESTIONS, COUNTER, "inferscale_encoder_questions_seconds_total", "", "Time in which a question was open") \
    X(ENCODER_TURNS, COUNTER, "inferscale_encoder_turns_total", "what", "Encoding beside questions: slice, pause or drop") \
    X(EMBEDDER_UP, GAUGE, "inferscale_embedder_up", "", "0 = the HTTP embedder failed of late: words serve") \
    X(EMBEDDER_FAILED, COUNTER, "inferscale_embedder_failures_total", "what", "Questions without a vector: failed, or spared as it had failed") \
    X(DAMAGED, COUNTER, "inferscale_damaged_segments_total", "what", "Rows found missing or damaged: queued, resting or disputed") \
    X(AUDITS, COUNTER, "inferscale_audits_total", "result", "Answers compared with their text twin: done, skipped or failed") \
    X(AUDIT_KL, KL, "inferscale_audit_kl", "", "Mean KL divergence of an answer's tokens from the text twin's")               \
    X(AUDIT_TOP1, COUNTER, "inferscale_audit_tokens_total", "top1", "Audited tokens: same or different likeliest token")      \
    X(AUDIT_ORDER, GAUGE, "inferscale_audit_order_ratio", "", "KL to the text twin over KL of a reordering to it, of late")   \
    X(UPSTREAM_UP, GAUGE, "inferscale_upstream_up", "upstream", "1 = the server that computes answers")                       \
    X(UPSTREAM_INJECTS, GAUGE, "inferscale_upstream_can_inject", "upstream", "1 = stored rows can be injected there")          \
    X(UPSTREAM_IN_FLIGHT, GAUGE, "inferscale_upstream_requests_in_flight", "upstream", "Requests under way there")            \
    X(UPSTREAM_PENDING, GAUGE, "inferscale_upstream_revocations_pending", "upstream", "Forgettings and changes that it has not confirmed") \
    X(UPSTREAM_REQUESTS, COUNTER, "inferscale_upstream_requests_total", "upstream", "Requests sent there")                    \
    X(UPSTREAM_RETRIES, COUNTER, "inferscale_upstream_retries_total", "upstream", "Requests that failed there and were sent to another") \
    X(UPSTREAM_INJECTED, COUNTER, "inferscale_upstream_injected_tokens_total", "upstream", "Prompt tokens injected there") \
    X(UPSTREAM_FAILURES, COUNTER, "inferscale_upstream_failures_total", "upstream,why", "Stored rows computed after all, and other failures") \
    X(STORE_BYTES, GAUGE, "inferscale_store_bytes", "what", "Bytes of bank, vault and RAM tier")                              \
    X(STORE_ITEMS, GAUGE, "inferscale_store_items", "what", "Facts, turns, partitions and segments")                          \
    X(STORE_USABLE, GAUGE, "inferscale_store_usable", "what", "1 = the store can be read, or written, now; 0 = it cannot") \
    X(READY, GAUGE, "inferscale_ready", "", "1 = it takes requests, as /ready says")                                          \
    X(BUILD, GAUGE, "inferscale_build_info", "version,model,engine", "1")                                                     \
    X(START, GAUGE, "process_start_time_seconds", "", "When the process started")                                             \
    X(RSS, GAUGE, "process_resident_memory_bytes", "", "Resident memory")                                                     \
    X(CPU, COUNTER, "process_cpu_seconds_total", "", "CPU time of the process, all threads")                                  \
    X(FDS, GAUGE, "process_open_fds", "", "Open file descriptors")

enum is_metric {
#define IS_X(id, kind, name, labels, help) IS_M_##id,
    IS_METRICS_MAP(IS_X)
#undef IS_X
    IS_N_METRICS
};

typedef struct is_metrics is_metrics;

inferscale_status is_metrics_new(is_metrics **out);
void is_metrics_free(is_metrics *m);
/* Whose they are: sets BUILD, and the label model_name of the aliases. */
void is_metrics_name(is_metrics *m, const char *version, const char *model, const char *engine);
/* value: of the first label, second: of the second; NULL where there are fewer. At most 200 series a metric: what is beyond counts under
 * "other". add: counters and gauges; set: gauges, and counters that somebody else counts; observe: histograms. A metric of another kind
 * is ignored. A gauge without labels is not shown before it is set: no measurement is not zero. */
void is_metric_add(is_metrics *m, enum is_metric id, const char *value, const char *second, double by);
void is_metric_set(is_metrics *m, enum is_metric id, const char *value, const char *second, double to);
void is_metric_observe(is_metrics *m, enum is_metric id, const char *value, double x);
/* What an answer was: TTFT, tokens, facts, fallbacks by reason, placements. */
void is_metrics_answer(is_metrics *m, const inferscale_answer *a);
/* The whole exposition; a new string for is_free. aliases: also under vLLM's names (which break promtool's rule against colons). NULL = out
 * of memory. */
char *is_metrics_text(is_metrics *m, bool aliases, size_t *len);
/* The name of a metric, or NULL behind the last one, and whether a name of a series ("x", "x_bucket", "vllm:x") is of one that exists. */
const char *is_metric_name(int id);
bool is_metric_known(const char *series);

#endif
