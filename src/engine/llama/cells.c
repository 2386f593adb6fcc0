/* cells.c - cells that nobody uses take no memory.
 *
 * libllama writes zeros over a whole cache when it makes it. With room for several runs of the full context that is most of the memory
 * that the process has, and little of it is ever used. Where the cache is ordinary memory its pages are handed back to the kernel: they
 * read as zeros again, and come back one by one when cells are written. */
#include "engine/llama/internal.h"

#include <sys/mman.h>
#include <unistd.h>

bool is_cells_find(is_tap *tap, struct ggml_tensor *t)
{
    uint32_t layer;
    bool is_v;
    ggml_backend_buffer_t b;

    if (!is_cache_node(t, &layer, &is_v) || !t->view_src || !(b = t->view_src->buffer)) return false;
    for (uint32_t i = 0; i < tap->n_cells; i++)
        if (tap->cells[i] == b) return false;
    if (tap->n_cells < CELL_BUFFERS_MAX) tap->cells[tap->n_cells++] = b;
    return false;
}

void is_cells_untouch(const is_tap *tap)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (uint32_t i = 0; i < tap->n_cells; i++) {
        uintptr_t from = (uintptr_t)ggml_backend_buffer_get_base(tap->cells[i]), to = from + ggml_backend_buffer_get_size(tap->cells[i]);

        if (!ggml_backend_buffer_is_host(tap->cells[i])) continue;
        from = (from + page - 1) / page * page;
        to = to / page * page;
        if (to > from) madvise((void *)from, to - from, MADV_DONTNEED); /* that it may fail costs memory only */
    }
}
