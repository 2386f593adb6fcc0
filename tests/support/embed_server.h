/* embed_server.h - an OpenAI-style embeddings endpoint of the test on the loopback. A request with a text that holds `hang` gets no answer
 * until embed_server_release; any other is answered at once. Everything asserts. */
#ifndef TESTS_EMBED_SERVER_H
#define TESTS_EMBED_SERVER_H

typedef struct embed_server embed_server;

embed_server *embed_server_start(const char *hang);
const char *embed_server_spec(const embed_server *s); /* http://127.0.0.1:PORT/v1#test */
int embed_server_requests(embed_server *s);           /* that came so far */
void embed_server_refuse(embed_server *s, const char *word); /* a request with a text that holds it is a 400 from now on */
int embed_server_held(embed_server *s);               /* requests that hang now */
void embed_server_release(embed_server *s);           /* from now on everything is answered */
void embed_server_stop(embed_server *s);              /* releases, and frees */

#endif
