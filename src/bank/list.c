/* list.c - lists of items. The strings of an item lie in one block that begins with its text, so that items may be moved about
 * inside a list and the block is still found. */
#include <string.h>

#include "bank/bank.h"
#include "base/mem.h"

typedef struct full_list {
    inferscale_list list; /* first: the public pointer is this one */
    size_t cap;
} full_list;

inferscale_list *is_list_new(void)
{
    full_list *l = is_calloc(1, sizeof *l);

    return l ? &l->list : NULL;
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "no memory for a list of items; free some memory or ask for fewer");
}

static is_status grow(full_list *l)
{
    size_t cap = l->cap ? l->cap * 2 : 16;
    inferscale_item *items;

    if (l->list.n < l->cap) return INFERSCALE_OK;
    items = is_realloc(l->list.items, cap * sizeof *items);
    if (!items) return no_memory();
    l->list.items = items;
    l->cap = cap;
    return INFERSCALE_OK;
}

is_status is_list_add(inferscale_list *list, const inferscale_item *item)
{
    full_list *l = (full_list *)list;
    inferscale_item copy = *item;
    const char **fields[] = { &copy.text, &copy.speaker, &copy.conversation, &copy.external_id, &copy.metadata, &copy.user,
                              &copy.agent, &copy.run, &copy.app }; /* text first */
    enum { N = sizeof fields / sizeof *fields };
    size_t sizes[N], total = 0;
    char *block;

    for (int i = 0; i < N; i++) {
        if (!*fields[i]) *fields[i] = "";
        sizes[i] = strlen(*fields[i]) + 1;
        total += sizes[i];
    }
    IS_TRY(grow(l));
    block = is_malloc(total);
    if (!block) return no_memory();
    for (int i = 0; i < N; i++) {
        memcpy(block, *fields[i], sizes[i]);
        *fields[i] = block;
        block += sizes[i];
    }
    list->items[list->n++] = copy;
    return INFERSCALE_OK;
}

void inferscale_list_free(inferscale_list *list)
{
    if (!list) return;
    for (size_t i = 0; i < list->n; i++) is_free((char *)list->items[i].text);
    is_free(list->items);
    is_free(list->fallback);
    is_free(list);
}
