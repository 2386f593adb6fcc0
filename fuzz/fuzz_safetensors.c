/* fuzz_safetensors.c - whatever the bytes, st_parse refuses them or every byte of every tensor can be read. */
#include <stdint.h>
#include <stdlib.h>

#include "tools/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file *f = NULL;
    volatile uint8_t sink = 0;
    uint64_t total = 0;

    if (st_parse(data, size, &f) != INFERSCALE_OK) {
        if (f) abort(); /* a failure gives nothing */
        return 0;
    }
    for (size_t i = 0; i < f->n; i++) {
        const st_tensor *t = &f->tensors[i];

        if (t->data < data || t->n_bytes > size || (size_t)(t->data - data) > size - t->n_bytes) abort();
        for (uint64_t b = 0; b < t->n_bytes; b++) sink = (uint8_t)(sink ^ t->data[b]);
        if (!st_find(f, t->name)) abort();
        total += t->n_bytes;
    }
    if (total > size) abort();
    st_free(f);
    return 0;
}
