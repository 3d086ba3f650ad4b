/* Faults of the disk below the store of jobs, for a process that has this library preloaded. The control file says what
   becomes of a sync of a file named jobs.sqlite*:
     hold   it goes on once the file says something else
     fail   the next one fails, and the file is gone */
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

static int faulty(int fd, const char *name) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    const char *control = getenv("SYNC_FAULT");
    if (control && is_store(fd)) {
        while (says(control, "hold")) usleep(5000);
        if (says(control, "fail") && !unlink(control)) {
            errno = EIO;
            return -1;
        }
    }
    return real(fd);
}

int fsync(int fd) { return faulty(fd, "fsync"); }
int fdatasync(int fd) { return faulty(fd, "fdatasync"); }
