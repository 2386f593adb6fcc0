/* ticket_api.c - tickets for connectors: kv/ticket.h behind the public names. */
#include "base/mem.h"
#include "kv/ticket.h"

inferscale_status inferscale_ticket_write(const inferscale_ticket *ticket, const uint8_t secret[32], char **text)
{
    if (text) *text = NULL;
    if (!ticket || !secret || !text || ticket->struct_size < sizeof *ticket)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_ticket_write needs a ticket begun with INFERSCALE_TICKET_INIT, a secret of 32 "
                       "bytes and a place for its result");
    return is_ticket_write(ticket, secret, text);
}

void inferscale_ticket_text_free(char *text)
{
    is_free(text);
}

inferscale_status inferscale_ticket_read(const char *text, const uint8_t secret[32], int64_t now, inferscale_ticket **out)
{
    if (out) *out = NULL;
    if (!text || !secret || !out)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_ticket_read needs a text, a secret of 32 bytes and a place for its result");
    return is_ticket_read(text, secret, now, out);
}

void inferscale_ticket_free(inferscale_ticket *ticket)
{
    is_free(ticket);
}
