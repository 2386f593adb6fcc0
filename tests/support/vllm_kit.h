/* vllm_kit.h - what the tests of the vLLM engine share. Everything asserts. */
#ifndef TESTS_SUPPORT_VLLM_KIT_H
#define TESTS_SUPPORT_VLLM_KIT_H

#include "engine/vllm/internal.h"
#include "support/vllm_fake.h"

#define V (&is_vllm_engine)

enum { SERVERS = 3 };

typedef struct vt_set { /* a store's folder, servers, and the engine on them */
    char *home;
    vllm_fake *f[SERVERS];
    void *e;
} vt_set;

typedef struct vt_plan {
    is_plan plan;
    is_part parts[16];
    int32_t ids[1024];
    uint32_t n;
} vt_plan;

typedef struct vt_capture {
    is_capture c;
    int32_t ids[256];
    float *rows[2 * FAKE_LAYERS];
    is_segment *stored;
} vt_capture;

void vt_nap(uint32_t ms);
is_status vt_open_urls(const char *home, const char *urls, void **e);
void vt_start_fakes(vt_set *s, int n);
is_status vt_open_set(vt_set *s);
void vt_start(vt_set *s, int n);
void vt_start_unkept(vt_set *s, int n); /* nobody makes a server well meanwhile */
void vt_stop(vt_set *s);
is_upstream vt_up_of(const vt_set *s, int i);
is_segment *vt_segment_of(const int32_t *tokens, uint32_t n, uint8_t name);
void vt_add(vt_plan *p, is_role role, const char *text, uint8_t name);
void vt_drop(vt_plan *p);
void vt_question(vt_plan *p);
is_realm vt_realm(uint8_t tag, uint64_t epoch);
void vt_expect_answer(void *e, is_run *run, const int32_t *prompt, uint32_t n, uint32_t length);
size_t vt_files_in(const char *home, const char *dir);
void vt_expect_ids(void *e, const char *text, bool special, const int32_t *want, uint32_t n);
void vt_expect_plain(void *e, const char *text);
void vt_make_capture(vt_capture *a, uint32_t n_context, uint32_t n_span, uint8_t salt);
void vt_free_capture(vt_capture *a);
void vt_expect_rows(const vt_capture *a);

#endif
