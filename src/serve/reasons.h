/* reasons.h - why an answer did less than was asked for, as few fixed names: from the sentences of inferscale_answer.fallback. */
#ifndef IS_SERVE_REASONS_H
#define IS_SERVE_REASONS_H

#include <stdbool.h>
#include <stddef.h>

/* The names there are: "other" is the last. */
size_t is_metrics_n_reasons(void);
const char *is_metrics_reason(size_t i);
/* has[i] = the sentences (joined by "; ") give reason i. All false for "". What is not known is "other". */
void is_metrics_reasons(const char *fallback, bool *has);

#endif
