/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK = 128 << 10 };

/* What a sanitizer has to be told of a stack that is not its thread's own. */
struct watched {
    void *fake;     /* the address sanitizer's, while the stack is left */
    const void *at; /* the stack */
    size_t size;
    void *fiber; /* the thread sanitizer's */
};

/* A stack is entered as a context, once, and then by jumps, which unlike
 * contexts ask the kernel nothing. They are the compiler's own: the library's
 * longjmp takes another stack for a mistake, and so does the address
 * sanitizer. */
struct cuda_fiber {
    void (*run)(void *context);
    void *context;
    ucontext_t start;
    void *own[5], *caller[5];
    bool entered;
    struct watched mine, callers;
    char *stack; /* a page that may not be touched, then STACK bytes */
    bool returned;
};

/* Between two stacks nothing is counted on either. */
#define NOT_WATCHED                                                            \
    __attribute__((noinline, no_sanitize_address, no_sanitize_thread))

#if defined __SANITIZE_ADDRESS__
NOT_WATCHED static void leave(struct watched *from, const struct watched *to) {
    __sanitizer_start_switch_fiber(&from->fake, to->at, to->size);
}

NOT_WATCHED static void arrive(const struct watched *at, struct watched *from) {
    __sanitizer_finish_switch_fiber(at->fake, &from->at, &from->size);
}
#elif defined __SANITIZE_THREAD__
NOT_WATCHED static void leave(struct watched *from, const struct watched *to) {
    from->fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->fiber, 0);
}

NOT_WATCHED static void arrive(const struct watched *, struct watched *) {
}
#else
NOT_WATCHED static void leave(struct watched *, const struct watched *) {
}

NOT_WATCHED static void arrive(const struct watched *, struct watched *) {
}
#endif

static void *watch(void) {
#ifdef __SANITIZE_THREAD__
    return __tsan_create_fiber(0);
#else
    return nullptr;
#endif
}

static void unwatch(void *fiber) {
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(fiber);
#else
    (void)fiber;
#endif
}

/* makecontext passes ints: a pointer goes as two. */
static void enter(unsigned high, unsigned low) {
    struct cuda_fiber *fiber =
        (struct cuda_fiber *)((uintptr_t)high << 32 | low);
    arrive(&fiber->mine, &fiber->callers);
    for (;;) {
        fiber->run(fiber->context);
        fiber->returned = true;
        cuda_fiber_pause(fiber);
    }
}

static void *stack_of(long guard) {
    void *stack = mmap(nullptr, (size_t)guard + STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, (size_t)guard, PROT_NONE)) {
        perror("a fiber's stack");
        exit(EXIT_FAILURE);
    }
    return stack;
}

struct cuda_fiber *cuda_fiber_open(void (*run)(void *context), void *context) {
    long guard = sysconf(_SC_PAGESIZE);
    struct cuda_fiber *fiber = new cuda_fiber();
    fiber->run = run;
    fiber->context = context;
    fiber->stack = static_cast<char *>(stack_of(guard));
    fiber->mine.at = fiber->stack + guard;
    fiber->mine.size = STACK;
    fiber->mine.fiber = watch();
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack + guard;
    fiber->start.uc_stack.ss_size = STACK;
    uintptr_t self = (uintptr_t)fiber;
    makecontext(&fiber->start, (void (*)())enter, 2, (unsigned)(self >> 32),
                (unsigned)self);
    return fiber;
}

void cuda_fiber_close(struct cuda_fiber **fiber) {
    if (!*fiber)
        return;
    unwatch((*fiber)->mine.fiber);
    munmap((*fiber)->stack, (size_t)sysconf(_SC_PAGESIZE) + STACK);
    delete *fiber;
    *fiber = nullptr;
}

[[noreturn]] NOT_WATCHED static void jump(void **to) {
    __builtin_longjmp(to, 1);
}

NOT_WATCHED static void enter_or_return(struct cuda_fiber *fiber) {
    if (__builtin_setjmp(fiber->caller))
        return;
    if (fiber->entered)
        jump(fiber->own);
    fiber->entered = true;
    setcontext(&fiber->start);
}

NOT_WATCHED static void leave_or_return(struct cuda_fiber *fiber) {
    if (!__builtin_setjmp(fiber->own))
        jump(fiber->caller);
}

bool cuda_fiber_resume(struct cuda_fiber *fiber) {
    fiber->returned = false;
    leave(&fiber->callers, &fiber->mine);
    enter_or_return(fiber);
    arrive(&fiber->callers, &fiber->mine);
    return fiber->returned;
}

void cuda_fiber_pause(struct cuda_fiber *fiber) {
    leave(&fiber->mine, &fiber->callers);
    leave_or_return(fiber);
    arrive(&fiber->mine, &fiber->callers);
}
