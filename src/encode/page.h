/* page.h - what the two halves of the page policy share (private to page.c and page_layout.c). */
#ifndef IS_ENCODE_PAGE_H
#define IS_ENCODE_PAGE_H

#include "encode/encode.h"

typedef struct is_pager {
    const is_encoder *enc;
    const is_partition *p;
    is_encode_job *job;          /* NULL where nothing is encoded */
    const is_policy *policy;
    char lead_policy[40];        /* the leads' rows are entered under this name */
    uint32_t room;               /* tokens of a page behind the header */
} is_pager;

/* Gives a place to all facts of the work that have none, in the books: open pages are filled, new ones begun. Facts that are too
 * large for a page are told as left. E_STALE if the memory or the books changed meanwhile. */
is_status is_lay_out_pages(is_pager *g, const is_work *w);

#endif
