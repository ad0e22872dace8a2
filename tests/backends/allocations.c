/* A malloc that fails when it is told to, preloaded before the C library's own. */

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

void *__libc_malloc(size_t bytes);
void __libc_free(void *block);

static atomic_int watching;
static atomic_long to_go, left, failed;

void *malloc(size_t bytes) {
    if (watching && to_go-- == 0) {
        failed = 1;
        errno = ENOMEM;
        return NULL;
    }
    void *block = __libc_malloc(bytes);
    left += watching && block != NULL;
    return block;
}

void free(void *block) {
    left -= watching && block != NULL;
    __libc_free(block);
}

/* Calls a function; the allocation after `failing` others fails. */
int call_with_failing(int (*function)(void *, void *, void *, void *, void *, void *), void *a,
                      void *b, void *c, void *d, void *e, void *f, long failing) {
    to_go = failing;
    left = 0;
    failed = 0;
    watching = 1;
    const int code = function(a, b, c, d, e, f);
    watching = 0;
    return code;
}

int has_failed(void) {
    return (int)failed;
}

/* How many blocks the last call has allocated and not freed. */
int blocks_left(void) {
    return (int)left;
}
