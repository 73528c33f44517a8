// A small libnvidia-ml.so.1 without a GPU: answers what a profile says, so that the real pynvml loads a real library.
//
// The profile is a file of lines `key=value`, named by ISOCHRONE_TEST_NVML, read at nvmlInit and again at every
// nvmlDeviceGetCount, so that a test changes the hardware by writing the file anew. Keys:
//
//   driver, cuda, count
//   gpu.N.uuid, .name, .bus, .arch, .bar1, .total, .reserved, .used (bytes), .links (number of links)
//   gpu.N.link.L.state (0, 1), .remote (0 GPU, 1 NPU, 2 switch), .bus, .version (NVML's enum), .speed (MB/s)
//   gpu.N.fabric.uuid (32 hex digits), .clique, .state, .status, .mask, .summary
//   gpu.N.mig (0, 1), .migafter, .migmax
//   gpu.N.mig.I.uuid, .gi, .ci, .slices, .mb, .used (bytes)           a MIG device at index I
//   gpu.N.gi.I.id, .profile, .start, .size                            a GPU instance
//   profile.P.id, .slices, .most, .mb, .name, .places (start:size,...), .remaining   by profile number
//   pair.A.B                        level of the common ancestor
//   xid.I                           "GPU CODE", an event to be delivered once
//   error.FUNCTION, error.gpu.N.FUNCTION   return code of a function, for all or one GPU
//   slow.gpu.N                      microseconds that each call about this GPU takes
//
// Layouts and names are those of NVIDIA's public NVML API, checked against the installed pynvml by a test.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15, VERSION = 25 };
enum { MOST = 1 << 14, GPUS = 128, MIGS = 8 };

typedef struct { int gpu, mig; } Device;  // mig is -1 for the GPU itself
typedef struct { int gpu, instance; } Instance;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned field, scope; int64_t timestamp, latency; unsigned type, code; union { unsigned u; unsigned long long ull; double d; } value; } Field;
typedef struct { unsigned version; uint8_t cluster[16]; unsigned status, clique; uint8_t state; unsigned mask; uint8_t summary; } Fabric3;
typedef struct { uint8_t cluster[16]; unsigned status, clique; uint8_t state; } Fabric1;
typedef struct { unsigned start, size; } Place;
typedef struct { Device *device; unsigned id, profile; Place place; } InstanceInfo;
typedef struct { unsigned version, id, p2p, slices, most, sms, copy, dec, enc, jpeg, ofa; unsigned long long mb; char name[96]; } Profile2;
typedef struct { unsigned sms, copy, dec, enc, jpeg, ofa, gslices, cslices; unsigned long long mb; } Attributes;
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;

static Device gpus[GPUS], migs[GPUS][MIGS];
static Instance instances[GPUS][MIGS];
static char *text, *keys[MOST], *values[MOST];
static int up, xids_taken, registered[GPUS];

static unsigned hash(const char *key) {
  unsigned h = 2166136261u;
  for (; *key; key++) h = (h ^ (uint8_t)*key) * 16777619u;
  return h & (MOST - 1);
}

static const char *get(const char *key) {
  for (unsigned i = hash(key);; i = (i + 1) & (MOST - 1)) {
    if (!keys[i]) return NULL;
    if (!strcmp(keys[i], key)) return values[i];
  }
}

static void load(void) {
  const char *path = getenv("ISOCHRONE_TEST_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  memset(keys, 0, sizeof keys);
  free(text);
  text = calloc(1, 4 << 20);
  if (!file || !text) return;
  text[fread(text, 1, (4 << 20) - 1, file)] = 0;
  fclose(file);
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    char *value = strchr(line, '=');
    if (!value) continue;
    *value++ = 0;
    unsigned i = hash(line);
    while (keys[i]) i = (i + 1) & (MOST - 1);
    keys[i] = line;
    values[i] = value;
  }
}

#define KEY(...) ({ static char k[160]; snprintf(k, sizeof k, __VA_ARGS__); k; })
#define STR(...) get(KEY(__VA_ARGS__))
#define HAS(...) (STR(__VA_ARGS__) != NULL)
#define NUM(...) ({ const char *v = STR(__VA_ARGS__); v ? strtoull(v, NULL, 0) : 0ull; })

static int failing(const char *function, int gpu) {
  if (!up) return UNINITIALIZED;
  if (gpu >= 0 && HAS("slow.gpu.%d", gpu)) usleep(NUM("slow.gpu.%d", gpu));
  const char *code = gpu < 0 ? NULL : STR("error.gpu.%d.%s", gpu, function);
  if (!code && gpu >= 0) code = STR("error.gpu.%d", gpu);
  if (!code) code = STR("error.%s", function);
  if (!code) code = get("error");
  return code ? atoi(code) : OK;
}

#define ENTER(gpu) do { int code = failing(__func__, gpu); if (code) return code; } while (0)
#define COPY(to, size, from) do { const char *s = (from); if (!s) return NOT_SUPPORTED; if (strlen(s) >= (size)) return SMALL; strcpy(to, s); } while (0)

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  load();
  const char *code = get("error.nvmlInitWithFlags");
  if (code) return atoi(code);
  for (int g = 0; g < GPUS; g++) {
    gpus[g] = (Device){g, -1};
    for (int m = 0; m < MIGS; m++) migs[g][m] = (Device){g, m}, instances[g][m] = (Instance){g, m};
  }
  up = 1;
  return OK;
}

int nvmlShutdown(void) { ENTER(-1); up = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "test library"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { ENTER(-1); COPY(to, size, get("driver")); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { ENTER(-1); *to = NUM("cuda"); return OK; }

int nvmlDeviceGetCount_v2(unsigned *to) {
  load();
  ENTER(-1);
  *to = NUM("count");
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **to) {
  if (failing("nvmlDeviceGetHandleByIndex_v2", index) == LOST && index < GPUS) registered[index] = 0;  // errors go nowhere any more
  ENTER(index);
  if (index >= NUM("count")) return INVALID;
  *to = &gpus[index];
  return OK;
}

int nvmlDeviceGetUUID(Device *d, char *to, unsigned size) {
  ENTER(d->gpu);
  if (d->mig >= 0) {
    if (!HAS("gpu.%d.mig.%d.uuid", d->gpu, d->mig)) return INVALID;
    COPY(to, size, STR("gpu.%d.mig.%d.uuid", d->gpu, d->mig));
    return OK;
  }
  COPY(to, size, STR("gpu.%d.uuid", d->gpu));
  return OK;
}

int nvmlDeviceGetName(Device *d, char *to, unsigned size) { ENTER(d->gpu); COPY(to, size, STR("gpu.%d.name", d->gpu)); return OK; }
int nvmlDeviceGetArchitecture(Device *d, unsigned *to) { ENTER(d->gpu); *to = NUM("gpu.%d.arch", d->gpu); return OK; }

static void pci(Pci *to, const char *bus) {  // "0000:1b:00.0" as NVML writes it
  memset(to, 0, sizeof *to);
  sscanf(bus, "%x:%x:%x", &to->domain, &to->bus, &to->device);
  snprintf(to->text, sizeof to->text, "%08X:%02X:%02X.0", to->domain, to->bus, to->device);
  snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", to->domain & 0xffff, to->bus & 0xff, to->device & 0xff);
}

int nvmlDeviceGetPciInfo_v3(Device *d, Pci *to) {
  ENTER(d->gpu);
  const char *bus = STR("gpu.%d.bus", d->gpu);
  if (!bus) return NOT_SUPPORTED;
  pci(to, bus);
  return OK;
}

int nvmlDeviceGetBAR1MemoryInfo(Device *d, Memory1 *to) {
  ENTER(d->gpu);
  if (!HAS("gpu.%d.bar1", d->gpu)) return NOT_SUPPORTED;
  to->total = to->free = NUM("gpu.%d.bar1", d->gpu);
  to->used = 0;
  return OK;
}

static int memory(Device *d, Memory2 *to) {
  if (d->mig >= 0) {
    if (!HAS("gpu.%d.mig.%d.uuid", d->gpu, d->mig)) return INVALID;
    to->total = NUM("gpu.%d.mig.%d.mb", d->gpu, d->mig) << 20;
    to->reserved = 0;
    to->used = NUM("gpu.%d.mig.%d.used", d->gpu, d->mig);
  } else {
    if (!HAS("gpu.%d.total", d->gpu)) return NOT_SUPPORTED;
    to->total = NUM("gpu.%d.total", d->gpu);
    to->reserved = NUM("gpu.%d.reserved", d->gpu);
    to->used = NUM("gpu.%d.used", d->gpu);
  }
  to->free = to->total - to->reserved - to->used;
  return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *to) {
  if (d->mig < 0) ENTER(d->gpu);
  if (to->version != 0x02000028) return VERSION;
  if (d->mig < 0 && HAS("gpu.%d.oldmemory", d->gpu)) return VERSION;
  return memory(d, to);
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory1 *to) {
  if (d->mig < 0) ENTER(d->gpu);
  Memory2 new = {0};
  int code = memory(d, &new);
  *to = (Memory1){new.total, new.free, new.used + new.reserved};  // version 1 counts the reserved part as used
  return code;
}

#define LINK(d, l) do { if ((l) >= NUM("gpu.%d.links", (d)->gpu)) return NUM("gpu.%d.links", (d)->gpu) ? INVALID : NOT_SUPPORTED; } while (0)

int nvmlDeviceGetNvLinkState(Device *d, unsigned l, unsigned *to) {
  ENTER(d->gpu);
  LINK(d, l);
  *to = NUM("gpu.%d.link.%u.state", d->gpu, l);
  return OK;
}

int nvmlDeviceGetNvLinkVersion(Device *d, unsigned l, unsigned *to) { ENTER(d->gpu); LINK(d, l); *to = NUM("gpu.%d.link.%u.version", d->gpu, l); return OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Device *d, unsigned l, unsigned *to) {
  ENTER(d->gpu);
  LINK(d, l);
  *to = HAS("gpu.%d.link.%u.remote", d->gpu, l) ? NUM("gpu.%d.link.%u.remote", d->gpu, l) : 0xFF;
  return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *d, unsigned l, Pci *to) {
  ENTER(d->gpu);
  LINK(d, l);
  const char *bus = STR("gpu.%d.link.%u.bus", d->gpu, l);
  if (!bus) return NOT_SUPPORTED;
  pci(to, bus);
  return OK;
}

int nvmlDeviceGetFieldValues(Device *d, int count, Field *f) {
  ENTER(d->gpu);
  for (int i = 0; i < count; i++) {
    unsigned links = NUM("gpu.%d.links", d->gpu), l = f[i].scope;
    f[i].type = 1;
    f[i].code = NOT_SUPPORTED;
    if (f[i].field == 91 && links) f[i].value.u = links, f[i].code = OK;
    if (l >= links) continue;
    if (f[i].field == 164 && HAS("gpu.%d.link.%u.speed", d->gpu, l)) f[i].value.u = NUM("gpu.%d.link.%u.speed", d->gpu, l), f[i].code = OK;
    if (f[i].field == 165) f[i].value.u = NUM("gpu.%d.link.%u.state", d->gpu, l), f[i].code = OK;
  }
  return OK;
}

static int fabric(Device *d, uint8_t *cluster, unsigned *status, unsigned *clique, uint8_t *state) {
  if (!HAS("gpu.%d.fabric.state", d->gpu)) return NOT_SUPPORTED;
  const char *hex = STR("gpu.%d.fabric.uuid", d->gpu);
  for (int i = 0; i < 16; i++) {
    unsigned byte = 0;
    if (hex && strlen(hex) == 32) sscanf(hex + 2 * i, "%2x", &byte);
    cluster[i] = byte;
  }
  *status = NUM("gpu.%d.fabric.status", d->gpu);
  *clique = NUM("gpu.%d.fabric.clique", d->gpu);
  *state = NUM("gpu.%d.fabric.state", d->gpu);
  return OK;
}

int nvmlDeviceGetGpuFabricInfo(Device *d, Fabric1 *to) { ENTER(d->gpu); return fabric(d, to->cluster, &to->status, &to->clique, &to->state); }

int nvmlDeviceGetGpuFabricInfoV(Device *d, Fabric3 *to) {
  ENTER(d->gpu);
  if (!HAS("gpu.%d.fabric.state", d->gpu)) return NOT_SUPPORTED;
  int new = to->version == 0x03000028;
  if (!new && to->version != 0x02000024) return VERSION;
  if (new && !HAS("gpu.%d.fabric.summary", d->gpu)) return VERSION;  // a driver without version 3
  to->mask = NUM("gpu.%d.fabric.mask", d->gpu);
  if (new) to->summary = NUM("gpu.%d.fabric.summary", d->gpu);
  return fabric(d, to->cluster, &to->status, &to->clique, &to->state);
}

int nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, unsigned *to) {
  ENTER(a->gpu);
  int low = a->gpu < b->gpu ? a->gpu : b->gpu, high = a->gpu < b->gpu ? b->gpu : a->gpu;
  if (!HAS("pair.%d.%d", low, high)) return NOT_SUPPORTED;
  *to = NUM("pair.%d.%d", low, high);
  return OK;
}

// --- MIG

int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *after) {
  ENTER(d->gpu);
  if (!HAS("gpu.%d.mig", d->gpu)) return NOT_SUPPORTED;
  *now = NUM("gpu.%d.mig", d->gpu);
  *after = HAS("gpu.%d.migafter", d->gpu) ? NUM("gpu.%d.migafter", d->gpu) : *now;
  return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *to) { ENTER(d->gpu); *to = NUM("gpu.%d.migmax", d->gpu); return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **to) {
  ENTER(d->gpu);
  if (index >= MIGS) return INVALID;
  if (!HAS("gpu.%d.mig.%u.uuid", d->gpu, index)) return NOT_FOUND;
  *to = &migs[d->gpu][index];
  return OK;
}

int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *to) { ENTER(d->gpu); *to = NUM("gpu.%d.mig.%d.gi", d->gpu, d->mig); return OK; }
int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *to) { ENTER(d->gpu); *to = NUM("gpu.%d.mig.%d.ci", d->gpu, d->mig); return OK; }

int nvmlDeviceGetAttributes_v2(Device *d, Attributes *to) {
  ENTER(d->gpu);
  memset(to, 0, sizeof *to);
  to->gslices = to->cslices = NUM("gpu.%d.mig.%d.slices", d->gpu, d->mig);
  to->mb = NUM("gpu.%d.mig.%d.mb", d->gpu, d->mig);
  return OK;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(Device *d, unsigned number, Profile2 *to) {
  ENTER(d->gpu);
  if (to->version != 0x02000098) return VERSION;
  if (!HAS("gpu.%d.mig", d->gpu) || !HAS("profile.%u.id", number)) return NOT_SUPPORTED;
  to->id = NUM("profile.%u.id", number);
  to->slices = NUM("profile.%u.slices", number);
  to->most = NUM("profile.%u.most", number);
  to->mb = NUM("profile.%u.mb", number);
  COPY(to->name, sizeof to->name, STR("profile.%u.name", number));
  return OK;
}

static int number_of(unsigned id) {
  for (int number = 0; number < 0x12; number++)
    if (HAS("profile.%d.id", number) && NUM("profile.%d.id", number) == id) return number;
  return -1;
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(Device *d, unsigned id, unsigned *to) {
  ENTER(d->gpu);
  int number = number_of(id);
  if (number < 0) return INVALID;
  *to = HAS("gpu.%d.remaining.%u", d->gpu, id) ? NUM("gpu.%d.remaining.%u", d->gpu, id) : NUM("profile.%d.most", number);
  return OK;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device *d, unsigned id, Place *to, unsigned *count) {
  ENTER(d->gpu);
  int number = number_of(id), n = 0;
  const char *at = number < 0 ? NULL : STR("profile.%d.places", number);
  if (!at) return INVALID;
  for (; at && n < 16; at = strchr(at, ','), at = at ? at + 1 : NULL, n++) sscanf(at, "%u:%u", &to[n].start, &to[n].size);
  *count = n;
  return OK;
}

int nvmlDeviceGetGpuInstances(Device *d, unsigned id, Instance **to, unsigned *count) {
  ENTER(d->gpu);
  *count = 0;
  for (int i = 0; i < MIGS; i++)
    if (HAS("gpu.%d.gi.%d.id", d->gpu, i) && NUM("gpu.%d.gi.%d.profile", d->gpu, i) == id) to[(*count)++] = &instances[d->gpu][i];
  return OK;
}

int nvmlGpuInstanceGetInfo(Instance *of, InstanceInfo *to) {
  ENTER(of->gpu);
  to->device = &gpus[of->gpu];
  to->id = NUM("gpu.%d.gi.%d.id", of->gpu, of->instance);
  to->profile = NUM("gpu.%d.gi.%d.profile", of->gpu, of->instance);
  to->place = (Place){NUM("gpu.%d.gi.%d.start", of->gpu, of->instance), NUM("gpu.%d.gi.%d.size", of->gpu, of->instance)};
  return OK;
}

// --- events

int nvmlEventSetCreate(int **to) { static int set; ENTER(-1); memset(registered, 0, sizeof registered); *to = &set; return OK; }
int nvmlEventSetFree(int *set) { (void)set; ENTER(-1); return OK; }
int nvmlDeviceGetSupportedEventTypes(Device *d, unsigned long long *to) { ENTER(d->gpu); *to = 0x9; return OK; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, int *set) {
  (void)set;
  ENTER(d->gpu);
  if (types & ~0x9ull) return NOT_SUPPORTED;
  registered[d->gpu] = 1;
  return OK;
}

int nvmlEventSetWait_v2(int *set, Event *to, unsigned ms) {
  (void)set;
  ENTER(-1);
  const char *event = STR("xid.%d", xids_taken);
  unsigned gpu, code;
  if (!event || sscanf(event, "%u %u", &gpu, &code) != 2) {
    usleep(ms * 1000);
    return TIMEOUT;
  }
  xids_taken++;
  if (!registered[gpu]) return TIMEOUT;  // nobody listens to this GPU
  *to = (Event){&gpus[gpu], 8, code, ~0u, ~0u};
  return OK;
}
