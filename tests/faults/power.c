/* Notes, in order, everything a process asks the kernel to put on a disk, so that a test can work out which
 * disks a power cut could leave behind. Preloaded into the process (LD_PRELOAD); the notes go to $POWER_LOG.
 *
 * A note is: kind (1 byte), length of the path (2 bytes), offset (8), length (4), the path, and for a write the bytes.
 * Kinds: W write, T truncate (offset is the new size), S sync, U unlink, A an acknowledgement (a write to *.acks).
 * One lock is held over each call and its note: the order of the notes is the order of the calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int notes = -1;
static const char *folder; /* $POWER_FOLDER: only files right below it are of interest */
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_ftruncate)(int, off64_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);

__attribute__((constructor)) static void start(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    folder = getenv("POWER_FOLDER");
    const char *path = getenv("POWER_LOG");
    if (path && folder) notes = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int ends(const char *path, const char *end) {
    size_t a = strlen(path), b = strlen(end);
    return a >= b && strcmp(path + a - b, end) == 0;
}

/* The kind of file behind a path: 'D' data, 'A' acknowledgements, 'F' the folder itself, 0 anything else. */
static int kind_of(const char *path) {
    size_t length = folder ? strlen(folder) : 0;
    if (notes < 0 || strncmp(path, folder, length) != 0) return 0;
    if (path[length] == 0) return 'F';
    if (ends(path, ".db") || ends(path, ".db-wal") || ends(path, ".db-journal")) return 'D';
    return ends(path, ".acks") ? 'A' : 0;
}

static int look(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return kind_of(path);
}

static void put(const void *bytes, size_t length) {
    const char *at = bytes;
    while (length > 0) {
        ssize_t done = real_write(notes, at, length);
        if (done <= 0) abort();
        at += done;
        length -= (size_t)done;
    }
}

static void note(char kind, const char *path, uint64_t offset, const void *bytes, uint32_t length) {
    unsigned char head[15];
    uint16_t name = (uint16_t)strlen(path);
    head[0] = (unsigned char)kind;
    memcpy(head + 1, &name, 2);
    memcpy(head + 3, &offset, 8);
    memcpy(head + 11, &length, 4);
    put(head, sizeof head);
    put(path, name);
    if (bytes) put(bytes, length);
}

ssize_t write(int file, const void *bytes, size_t count) {
    char path[PATH_MAX];
    int kind = look(file, path);
    if (!kind || kind == 'F') return real_write(file, bytes, count);
    pthread_mutex_lock(&lock);
    off64_t offset = lseek64(file, 0, SEEK_CUR);
    ssize_t done = real_write(file, bytes, count);
    if (done > 0) note(kind == 'A' ? 'A' : 'W', path, (uint64_t)offset, bytes, (uint32_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    char path[PATH_MAX];
    int kind = look(file, path);
    if (kind != 'D') return real_pwrite(file, bytes, count, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = real_pwrite(file, bytes, count, offset);
    if (done > 0) note('W', path, (uint64_t)offset, bytes, (uint32_t)done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) { return pwrite64(file, bytes, count, offset); }

int ftruncate64(int file, off64_t size) {
    char path[PATH_MAX];
    int kind = look(file, path);
    if (kind != 'D') return real_ftruncate(file, size);
    pthread_mutex_lock(&lock);
    int status = real_ftruncate(file, size);
    if (status == 0) note('T', path, (uint64_t)size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return status;
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

static int sync_with(int (*real)(int), int file) {
    char path[PATH_MAX];
    int kind = look(file, path);
    if (kind != 'D' && kind != 'F') return real(file);
    pthread_mutex_lock(&lock);
    int status = 0; /* the test decides what a sync keeps: waiting for the real disk would only cost time */
    note('S', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return status;
}

int fsync(int file) { return sync_with(real_fsync, file); }

int fdatasync(int file) { return sync_with(real_fdatasync, file); }

int unlink(const char *name) {
    char path[PATH_MAX];
    if (!realpath(name, path) || kind_of(path) != 'D') return real_unlink(name);
    pthread_mutex_lock(&lock);
    int status = real_unlink(name);
    if (status == 0) note('U', path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return status;
}
