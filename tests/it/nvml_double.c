/* Stand-in for the NVIDIA driver library. Devices and faults come from the file named by NVML_DOUBLE, read with each call.
   Devices, in the order of their lines:
     gpu TOTAL_MIB USED_MIB     fixed figures, no processes
     card TOTAL_MIB PAGES DIR   a simulated card: what processes hold of its pages, and which
   Faults:
     fail CODE      every call returns it
     fail_card INDEX CODE   every call about that card returns it
     hang_card INDEX        every call about that card takes until the line is gone
     no_init CODE   the library does not begin, and returns it
     hang MS        every call takes so long, or until the line is gone
     lag MS         figures of cards are so old
     lost INDEX     that device is lost
     no_processes   lists of processes are not supported
     mig INDEX      that device is cut into two slices of half its memory
     no_parent      a card that is cut may not be asked about itself
     busy PERCENT   the utilization of devices that are not cut; not supported without the line
     unified        the memory of devices is not supported */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int Result;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct {
    unsigned total, used, pages, is_lost, is_cut, slice, parent, hangs;
    int code;
    char card[512];
    Process processes[64];
    unsigned process_count;
} Gpu;
typedef Gpu *Device;
typedef struct { unsigned version; unsigned long long total, reserved, unused, used; } Memory;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, LOST = 15, GPUS_MAX = 16, SLICES = 2, PAST_MAX = 4096
};

static Gpu gpus[GPUS_MAX], slices[GPUS_MAX][SLICES];
static unsigned count, busy_percent, lag_ms, has_no_processes, has_no_parent, is_unified;
static int is_up, init_code;
/* Figures of the past, for `lag`. */
static struct { unsigned long long at_ms; unsigned used[GPUS_MAX]; } past[PAST_MAX];
static unsigned past_next;

/* Calls of several threads are one after the other but for those that hang. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static int enter(void) { return pthread_mutex_lock(&calls); }
static void leave(int *entered) { (void)entered; pthread_mutex_unlock(&calls); }
#define CALL int entered __attribute__((cleanup(leave), unused)) = enter()

static void pause_call(void) {
    pthread_mutex_unlock(&calls);
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    pthread_mutex_lock(&calls);
}

static unsigned long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* Pages of a simulated card that processes have locked, as /proc/locks shows them. */
static void read_card(Gpu *gpu) {
    FILE *locks = fopen("/proc/locks", "r");
    char line[300], path[600];
    unsigned pid, at;
    unsigned long inode;
    gpu->used = gpu->process_count = 0;
    if (!locks) return;
    unsigned long inodes[1024] = {0};
    for (at = 0; at < gpu->pages && at < 1024; at++) {
        struct stat page;
        snprintf(path, sizeof path, "%s/page-%04u", gpu->card, at);
        if (!stat(path, &page)) inodes[at] = page.st_ino;
    }
    while (fgets(line, sizeof line, locks)) {
        if (sscanf(line, "%*s FLOCK %*s WRITE %u %*x:%*x:%lu", &pid, &inode) != 2) continue;
        for (at = 0; at < gpu->pages && inodes[at] != inode; at++) {}
        if (at >= gpu->pages) continue;
        unsigned page_mib = gpu->total / gpu->pages, own = 0;
        gpu->used += page_mib;
        while (own < gpu->process_count && gpu->processes[own].pid != pid) own++;
        if (own == 64) continue;
        if (own == gpu->process_count) gpu->processes[gpu->process_count++] = (Process){ .pid = pid };
        gpu->processes[own].used += (unsigned long long)page_mib << 20;
    }
    fclose(locks);
}

static void remember(void) {
    past[past_next % PAST_MAX].at_ms = now_ms();
    for (unsigned at = 0; at < count; at++) past[past_next % PAST_MAX].used[at] = gpus[at].used;
    past_next++;
}

/* The figure of a device as it was `lag` before. */
static unsigned used_then(unsigned index) {
    unsigned long long then = now_ms() - lag_ms;
    for (unsigned back = 1; back <= past_next && back < PAST_MAX; back++) {
        unsigned at = (past_next - back) % PAST_MAX;
        if (past[at].at_ms <= then) return past[at].used[index];
    }
    return gpus[index].used;
}

static Result read_file(unsigned *hang_ms) {
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[700];
    unsigned index;
    int code = OK;
    busy_percent = 101;
    init_code = OK;
    count = lag_ms = has_no_processes = has_no_parent = is_unified = *hang_ms = 0;
    if (!file) return code;
    memset(gpus, 0, sizeof gpus);
    while (count < GPUS_MAX && fgets(line, sizeof line, file)) {
        Gpu *gpu = &gpus[count];
        sscanf(line, "fail %d", &code);
        sscanf(line, "no_init %d", &init_code);
        sscanf(line, "hang %u", hang_ms);
        sscanf(line, "lag %u", &lag_ms);
        sscanf(line, "busy %u", &busy_percent);
        has_no_processes |= !strncmp(line, "no_processes", 12);
        has_no_parent |= !strncmp(line, "no_parent", 9);
        is_unified |= !strncmp(line, "unified", 7);
        int card_code;
        if (sscanf(line, "fail_card %u %d", &index, &card_code) == 2 && index < GPUS_MAX) gpus[index].code = card_code;
        if (sscanf(line, "hang_card %u", &index) == 1 && index < GPUS_MAX) gpus[index].hangs = 1;
        if (sscanf(line, "lost %u", &index) == 1 && index < GPUS_MAX) gpus[index].is_lost = 1;
        if (sscanf(line, "mig %u", &index) == 1 && index < GPUS_MAX) gpus[index].is_cut = 1;
        if (sscanf(line, "gpu %u %u", &gpu->total, &gpu->used) == 2) count++;
        else if (sscanf(line, "card %u %u %511s", &gpu->total, &gpu->pages, gpu->card) == 3) { read_card(gpu); count++; }
    }
    fclose(file);
    remember();
    return code;
}

static Result look(void) {
    unsigned hang_ms;
    unsigned long long begin = now_ms();
    Result code = read_file(&hang_ms);
    while (hang_ms && now_ms() - begin < hang_ms) {
        pause_call();
        code = read_file(&hang_ms);
    }
    return is_up ? code : UNINITIALIZED;
}

static Gpu *card_of(Device device) { return device->slice ? &gpus[device->parent] : device; }

/* A question about one device. */
static Result ask(Device device) {
    Result code = look();
    while (!code && card_of(device)->hangs) {
        pause_call();
        code = look();
    }
    if (code) return code;
    if (card_of(device)->code) return card_of(device)->code;
    if (card_of(device)->is_lost) return LOST;
    return device->is_cut && has_no_parent ? NO_PERMISSION : OK;
}

Result nvmlInit_v2(void) {
    CALL;
    unsigned hang_ms;
    read_file(&hang_ms);
    is_up = !init_code;
    return init_code;
}
Result nvmlShutdown(void) { CALL; is_up = 0; return OK; }
const char *nvmlErrorString(Result code) { (void)code; return "double"; }
Result nvmlDeviceGetCount_v2(unsigned *number) { CALL; Result code = look(); *number = count; return code; }

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    CALL;
    Result code = look();
    if (code) return code;
    if (index >= count) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return gpus[index].code ? gpus[index].code : gpus[index].is_lost ? LOST : OK;
}

Result nvmlDeviceGetMemoryInfo_v2(Device device, Memory *memory) {
    CALL;
    Result code = ask(device);
    if (code) return code;
    if (is_unified) return NOT_SUPPORTED;
    Gpu *card = card_of(device);
    unsigned parts = device->slice ? SLICES : 1, used = lag_ms ? used_then(card - gpus) : card->used;
    /* What is held of a card that is cut, its first slice has. */
    if (device->slice > 1) used = 0;
    memory->total = ((unsigned long long)card->total << 20) / parts;
    memory->used = (unsigned long long)used << 20;
    memory->reserved = 0;
    memory->unused = memory->total - memory->used;
    return OK;
}

Result nvmlDeviceGetUtilizationRates(Device device, unsigned rates[2]) {
    CALL;
    Result code = ask(device);
    if (code) return code;
    if (busy_percent > 100 || device->slice) return NOT_SUPPORTED;
    rates[0] = busy_percent;
    rates[1] = 0;
    return OK;
}

Result nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    CALL;
    Result code = ask(device);
    if (device->slice) snprintf(text, length, "MIG-double-%u-%u", device->parent, device->slice - 1);
    else snprintf(text, length, "GPU-double-%ld", (long)(device - gpus));
    return code;
}

Result nvmlDeviceGetName(Device device, char *text, unsigned length) {
    CALL;
    snprintf(text, length, "Double 100");
    return ask(device);
}

Result nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    CALL;
    Result code = ask(device);
    if (code) return code;
    *current = *pending = device->is_cut;
    return OK;
}

Result nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *number) {
    CALL;
    *number = SLICES;
    return ask(device);
}

Result nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *slice) {
    CALL;
    Result code = look();
    if (code) return code;
    if (index >= SLICES) return NOT_FOUND;
    *slice = &slices[device - gpus][index];
    (*slice)->slice = index + 1;
    (*slice)->parent = device - gpus;
    return OK;
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *number, Process *processes) {
    CALL;
    Result code = ask(device);
    if (code) return code;
    if (has_no_processes) return NOT_SUPPORTED;
    Gpu *card = card_of(device);
    unsigned here = device->slice > 1 ? 0 : card->process_count;
    if (*number < here) { *number = here; return INSUFFICIENT_SIZE; }
    if (processes) memcpy(processes, card->processes, here * sizeof *processes);
    *number = here;
    return OK;
}
