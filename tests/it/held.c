/* A process that no signal ends, as one that hangs in a call of its driver. Its tracer never looks at it: a signal stops
   it, and what SIGKILL leaves is not seen by its parent until the tracer ends.
     held wait FILE   waits for ever, and writes its number to a file
     held trace PID   traces that process, says so, and ends with its standard input */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

static int wait_for_ever(const char *path) {
    /* Where Yama guards processes, a stranger may not trace one that does not say so. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file)) return 1;
    for (;;) pause();
}

static int trace(pid_t pid) {
    if (ptrace(PTRACE_SEIZE, pid, 0, 0)) {
        perror("ptrace");
        return 1;
    }
    puts("traced");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}

int main(int count, char **arguments) {
    if (count == 3 && !strcmp(arguments[1], "wait")) return wait_for_ever(arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "trace")) return trace(atoi(arguments[2]));
    return 2;
}
