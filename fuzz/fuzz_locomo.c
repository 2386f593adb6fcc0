/* fuzz_locomo.c - any bytes as a LoCoMo file: parsed whole or refused with a sentence. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/locomo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const locomo_conversation *c)
{
    for (size_t i = 0; i < c->n_turns; i++) {
        char *text = locomo_turn_text(&c->turns[i]);
        if (!text || !c->turns[i].dia_id || !c->turns[i].speaker || c->turns[i].time == 0) abort();
        is_free(text);
    }
    for (size_t i = 0; i < c->n_observations; i++)
        for (size_t d = 0; d < c->observations[i].n_dia_ids; d++)
            if (c->observations[i].dia_ids[d][0] != 'D') abort();
    for (size_t i = 0; i < c->n_qa; i++)
        if (!c->qa[i].question || !c->qa[i].answer || c->qa[i].category < 1 || c->qa[i].category > 5) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    locomo *l = NULL;

    if (locomo_parse((const char *)data, size, &l) == INFERSCALE_OK) {
        if (l->n == 0) abort();
        for (size_t i = 0; i < l->n; i++) check(&l->conversations[i]);
        if (!locomo_find(l, l->conversations[0].id)) abort();
    } else if (l || !*is_error()) {
        abort();
    }
    locomo_free(l);
    return 0;
}
