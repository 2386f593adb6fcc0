/* tickets.c - what the connector trusts: signed tickets, salts, and requests that are nothing but a ticket. */
#include "kv/ticket.h"

#include <string.h>

#include "engine/vllm/internal.h"

enum { TICKET_SECONDS = 600, DIR_VAULT = 0, DIR_HEADS = 1 };

is_status vllm_ticket_make(vllm *e, vllm_ask_for *a, char **out)
{
    inferscale_ticket t = { .struct_size = sizeof t, .op = a->op, .epoch = a->realm.epoch, .expires = is_now_epoch() + TICKET_SECONDS,
                            .n_prompt = a->n_prompt, .n_parts = a->n_parts, .capture_from = a->capture_begin, .capture_n = a->capture_n };
    inferscale_kv_part *parts = is_calloc((size_t)a->n_parts + 1, sizeof *parts);
    uint8_t secret[IS_KEY_BYTES];
    is_status st;

    *out = NULL;
    if (!parts) return vllm_no_memory();
    for (uint32_t i = 0; i < a->n_parts; i++) {
        memcpy(parts[i].name, a->parts[i].name, IS_HASH_BYTES);
        parts[i].dir = a->parts[i].head ? DIR_HEADS : DIR_VAULT;
        parts[i].n_tokens = a->parts[i].n_tokens;
        parts[i].pos = a->parts[i].pos;
    }
    t.parts = parts;
    memcpy(t.id, a->id, sizeof t.id);
    if (e->model && a->op != INFERSCALE_TICKET_DESCRIBE) memcpy(t.fingerprint, e->model->fingerprint, sizeof t.fingerprint);
    memcpy(t.tag, a->realm.tag, sizeof t.tag);
    memcpy(t.salt, a->salt, sizeof t.salt);
    st = is_ticket_prompt(a->prompt, a->n_prompt, t.prompt_hash);
    a->n_secret = vllm_secret_get(e, secret);
    if (st == INFERSCALE_OK) st = is_ticket_write(&t, secret, out);
    memset(secret, 0, sizeof secret);
    is_free(parts);
    return st;
}

is_status vllm_salt_make(vllm *e, const is_realm *realm, const int32_t *header, uint32_t n_header, const vllm_part *parts,
                         uint32_t n_parts, uint32_t attempt, uint8_t out[IS_HASH_BYTES])
{
    uint8_t (*names)[IS_HASH_BYTES] = is_malloc(((size_t)n_parts + 1) * sizeof *names);
    is_ticket_salt_of of = { .attempt = attempt };
    uint8_t secret[IS_KEY_BYTES];
    is_status st;

    if (!names) return vllm_no_memory();
    for (uint32_t i = 0; i < n_parts; i++)
        if (!parts[i].head) memcpy(names[of.n_names++], parts[i].name, IS_HASH_BYTES);
    if (realm) memcpy(of.tag, realm->tag, sizeof of.tag);
    if (realm) of.epoch = realm->epoch;
    memcpy(of.fingerprint, e->model->fingerprint, sizeof of.fingerprint);
    is_hash_once(NULL, header, n_header * sizeof *header, of.profile);
    of.names = (const uint8_t (*)[IS_HASH_BYTES])names;
    vllm_secret_get(e, secret);
    st = is_ticket_salt(secret, &of, out);
    memset(secret, 0, sizeof secret);
    is_free(names);
    return st;
}

is_status vllm_ticket_body(vllm *e, vllm_ask_for *a, char **body)
{
    is_buf b = IS_BUF_INIT;
    char *ticket, hex[IS_HASH_HEX];

    *body = NULL;
    if (!a->salted) is_random(a->salt, sizeof a->salt);
    if (a->op == INFERSCALE_TICKET_DESCRIBE || a->op == INFERSCALE_TICKET_REVOKE) is_random(a->id, sizeof a->id);
    IS_TRY(vllm_ticket_make(e, a, &ticket));
    is_buf_str(&b, "{\"prompt\":[");
    for (uint32_t i = 0; i < a->n_prompt; i++) is_buf_fmt(&b, "%s%d", i ? "," : "", a->prompt[i]);
    is_hex(a->salt, sizeof a->salt, hex);
    is_buf_fmt(&b, "],\"max_tokens\":1,\"temperature\":0,\"stream\":false,\"cache_salt\":\"%s\"", hex); /* if the ticket is refused */
    is_buf_fmt(&b, ",\"kv_transfer_params\":{\"inferscale\":\"%s\"}}", ticket);
    is_free(ticket);
    *body = is_buf_take(&b);
    return *body ? INFERSCALE_OK : vllm_no_memory();
}

is_status vllm_ticket_answer(const json_t *answer, json_t **out, const char **code)
{
    static const char *const codes[] = { "unsigned", "expired" };
    json_t *said = json_object_get(json_object_get(answer, "kv_transfer_params"), "inferscale");
    const char *reason = json_string_value(json_object_get(said, "reason"));

    *out = NULL;
    if (code) *code = "";
    if (!json_is_object(said))
        return is_fail(INFERSCALE_E_NOTFOUND, "there is no InferScale connector in this vLLM; install inferscale-vllm beside it and start it "
                       "with --kv-transfer-config (docs/vllm.md has the command)");
    for (size_t i = 0; reason && i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(reason, codes[i]) != 0) continue;
        if (code) *code = codes[i];
        return is_fail(INFERSCALE_E_DENIED, "the connector does not trust this store (%s); vLLM's connector must be given the same folder as "
                       "--home, on machines whose clocks agree", reason);
    }
    *out = json_incref(said);
    return INFERSCALE_OK;
}

is_status vllm_ticket_ask(vllm *e, uint32_t up, vllm_ask_for *a, vllm_flags flags, uint32_t ms, json_t **out, const char **code)
{
    for (int n = 0;; n++) {
        json_t *answer = NULL;
        char *body = NULL;
        bool retry;
        is_status st = vllm_ticket_body(e, a, &body);

        *out = NULL;
        if (code) *code = "";
        if (st == INFERSCALE_OK) st = vllm_ask(e, up, "/v1/completions", body, flags, ms, &answer, &retry);
        is_free(body);
        if (st != INFERSCALE_OK) return st;
        st = vllm_ticket_answer(answer, out, code);
        json_decref(answer);
        if (st != INFERSCALE_E_DENIED || n || !vllm_secret_again(e)) return st;
    }
}
