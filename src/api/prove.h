/* prove.h - the proof of forgetting: what goes is remembered in memory while it goes, then looked for in every byte of the store. */
#ifndef IS_API_PROVE_H
#define IS_API_PROVE_H

#include "api/handle.h"

typedef struct is_proof is_proof;

is_status is_proof_new(inferscale *is, is_proof **out);
void is_proof_free(is_proof *p);                         /* wipes; NULL is allowed */
/* As is_closure.each: ctx is the proof. */
is_status is_proof_gone(void *ctx, int kind, const void *bytes, size_t n);
/* The segments that go: read before their files are taken away. Those that cannot be read are left out, and counted as unsearched. */
is_status is_proof_segments(is_proof *p, const is_names *names);
/* Searches. Fills in the report's part of the proof. E_TRACE, E_BUSY (the log), E_CANCELLED, E_IO ... */
is_status is_proof_search(is_proof *p, uint32_t wait_ms, inferscale_progress_fn progress, void *progress_ctx,
                          inferscale_forget_report *report);

#endif
