/* demo.h - the parts of `inferscale demo`: its data, and what it prints. */
#ifndef IS_CLI_DEMO_H
#define IS_CLI_DEMO_H

#include "cli/cli.h"

/* A file of the demo's data: $PREFIX/share/inferscale/NAME or data/NAME of the source tree, found from where the program is.
 * is_free'd; NULL + error. */
char *demo_data_path(const char *name);

enum { DEMO_QUESTIONS_MAX = 16, DEMO_K_MAX = 8 };

typedef struct demo_pair { inferscale_answer *kv, *text; } demo_pair;
typedef struct demo_k { int64_t k; uint32_t facts, fact_tokens; double kv_ms, text_ms; } demo_k;

/* Both executions of one question, side by side. */
void demo_print_pair(inferscale *is, const inferscale_scope *scope, size_t number, const char *question, const demo_pair *p);
/* What is paid at each k, with bars. */
void demo_print_k(const demo_k *rows, size_t n, int64_t runs);
/* What to type next, with the program as it is called from here. */
void demo_print_next(void);
/* {answer, ttft_ms, tokens_computed, tokens_injected, mode, fallback, facts} */
json_t *demo_answer_json(const inferscale_answer *answer);

#endif
