/* LD_PRELOAD: each stat by name waits a millisecond, as on a file server; what the kernel does is unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
struct stat;
static void server(void) { struct timespec t = {0, 1000000}; nanosleep(&t, 0); }
#define SLOW(name)                                                                                  \
    int name(const char *path, struct stat *to) {                                                   \
        static int (*real)(const char *, struct stat *);                                            \
        if (!real) real = (int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, #name);            \
        server();                                                                                   \
        return real(path, to);                                                                      \
    }
SLOW(stat) SLOW(stat64) SLOW(lstat) SLOW(lstat64)
#define SLOW_AT(name)                                                                               \
    int name(int fd, const char *path, struct stat *to, int flags) {                                \
        static int (*real)(int, const char *, struct stat *, int);                                  \
        if (!real) real = (int (*)(int, const char *, struct stat *, int))dlsym(RTLD_NEXT, #name);  \
        server();                                                                                   \
        return real(fd, path, to, flags);                                                           \
    }
SLOW_AT(fstatat) SLOW_AT(fstatat64)
