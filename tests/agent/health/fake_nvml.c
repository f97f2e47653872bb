/* A libnvidia-ml for machines without a GPU: two healthy GPUs, but for the fault that FAKE_NVML names, as in
   "ecc" or "h2:ecc" (on the host of this name only). FAKE_NVML=@FILE: the fault that this file names at the moment.
   FAKE_NVML_PIDS=FILE: processes that use the GPUs, as lines "GPU PID". */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int has(const char *fault) {
    const char *wanted = getenv("FAKE_NVML");
    char host[64] = "", here[128], line[64] = "";
    if (!wanted) return 0;
    if (*wanted == '@') {
        FILE *file = fopen(wanted + 1, "r");
        if (!file) return 0;
        if (fgets(line, sizeof line, file)) line[strcspn(line, "\n")] = 0;
        fclose(file);
        wanted = line;
    }
    gethostname(host, sizeof host - 1);
    snprintf(here, sizeof here, "%s:%s", host, fault);
    return !strcmp(wanted, fault) || !strcmp(wanted, here);
}
/* GPU 1 has the fault. */
static int bad(void *gpu, const char *fault) { return gpu == (void *)2 && has(fault); }

int nvmlInit_v2(void) { return has("no-driver") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = has("one-missing") ? 1 : 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    *gpu = (void *)(long)(index + 1);
    return bad(*gpu, "off-bus") ? 15 : 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, has("driver") ? "1.0" : "580.1"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) { (void)gpu; snprintf(text, size, "Fake"); return 0; }
int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *errors) {
    (void)type; (void)counter;
    *errors = bad(gpu, "ecc") ? 3 : 0;
    return 0;
}
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 0; *uncorrected = bad(gpu, "pending");
    *pending = bad(gpu, "pending"); *failed = bad(gpu, "remap-failed");
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons) {
    *reasons = bad(gpu, "hot") ? 0x40 : bad(gpu, "brake") ? 0x80 : 0x1;
    return 0;
}
int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *mhz) { (void)gpu; (void)type; *mhz = 300; return 0; }
int nvmlDeviceGetMaxClockInfo(void *gpu, int type, unsigned *mhz) { (void)gpu; (void)type; *mhz = has("clock") ? 900 : 1980; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *mw) { *mw = bad(gpu, "capped") ? 200000 : 700000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *gpu, unsigned *mw) { (void)gpu; *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) { (void)sensor; *celsius = bad(gpu, "fever") ? 95 : 40; return 0; }
int nvmlDeviceGetTemperatureThreshold(void *gpu, int which, unsigned *celsius) { (void)gpu; (void)which; *celsius = 90; return 0; }
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *found) {
    const char *path = getenv("FAKE_NVML_PIDS");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned room = *count, pid;
    long index;
    *count = bad(gpu, "used") ? 2 : 0;
    while (file && fscanf(file, "%ld %u", &index, &pid) == 2)
        if (gpu == (void *)(index + 1)) {
            if (*count < room) found[*count].pid = pid;
            ++*count;
        }
    if (file) fclose(file);
    return *count > room ? 7 : 0;
}
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *rates) { (void)gpu; rates[0] = 97; rates[1] = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *bytes) {
    (void)gpu;
    bytes[0] = 80ull << 30; bytes[1] = 60ull << 30; bytes[2] = 20ull << 30;
    return 0;
}
int nvmlEventSetCreate(void **set) { static int events; *set = &events; return 0; }
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long kinds, void *set) { (void)gpu; (void)kinds; (void)set; return 0; }
struct event { void *gpu; unsigned long long kind, data; unsigned gpu_instance, compute_instance; };
/* One Xid, once. */
int nvmlEventSetWait_v2(int *set, struct event *found, unsigned timeout_ms) {
    (void)timeout_ms;
    if (*set || !has("xid")) return 10;
    *set = 1;
    found->gpu = (void *)2; found->kind = 8; found->data = 48;
    return 0;
}
