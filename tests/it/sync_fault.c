/* Faults of the disk below the store of jobs, for a process that has this library preloaded. The control file says what
   becomes of a sync of a file named jobs.sqlite*:
     hold   it goes on once the file says something else
     fail   the next one after a write with the word "hello" fails, and the file is gone: that of the transaction with
            such a job, and not one of a checkpoint, whose failure changes nothing */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_store(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "jobs.sqlite") != NULL;
}

static int says(const char *control, const char *word) {
    char read[16] = "";
    FILE *file = fopen(control, "r");
    if (!file) return 0;
    int is_read = fscanf(file, "%15s", read) == 1;
    fclose(file);
    return is_read && !strcmp(read, word);
}

/* A write with the word has been made, and no sync since then. */
static volatile int is_marked;

static void look(int fd, const void *bytes, size_t length) {
    const char *control = getenv("SYNC_FAULT");
    if (control && memmem(bytes, length, "hello", 5) && is_store(fd) && says(control, "fail")) is_marked = 1;
}

static int faulty(int fd, const char *name) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    const char *control = getenv("SYNC_FAULT");
    if (control && is_store(fd)) {
        while (says(control, "hold")) usleep(5000);
        if (is_marked && says(control, "fail") && !unlink(control)) {
            is_marked = 0;
            errno = EIO;
            return -1;
        }
    }
    return real(fd);
}

int fsync(int fd) { return faulty(fd, "fsync"); }
int fdatasync(int fd) { return faulty(fd, "fdatasync"); }

ssize_t write(int fd, const void *bytes, size_t length) {
    look(fd, bytes, length);
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return real(fd, bytes, length);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    look(fd, bytes, length);
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, bytes, length, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return pwrite64(fd, bytes, length, at); }
