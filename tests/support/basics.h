/*
 * What programs of tests need that use cmocka or not, in the parent or in a child: time, random
 * numbers, numbers of the environment, files of the build, and what this process has open.
 */
#ifndef TCPX_TESTS_SUPPORT_BASICS_H
#define TCPX_TESTS_SUPPORT_BASICS_H

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* What a sanitizer makes slower. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* --- time ------------------------------------------------------------------------------------ */

static inline uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void nap_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000),
                            .tv_nsec = (long)(us % 1000000) * 1000};

    while (nanosleep(&left, &left) != 0)
        ;
}

static inline void nap_ms(uint64_t ms)
{
    nap_us(ms * 1000);
}

/* --- random numbers, of a state that one thread owns ----------------------------------------- */

/* xorshift64*: the same numbers in every run with the same seed. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_next(state) % limit;
}

/* --- the environment ------------------------------------------------------------------------- */

static inline uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

/* TCPX_TEST_TURNS percent of what is done over and over; one at least. */
static inline int turns_of(int all)
{
    int turns = (int)((uint64_t)all * number_of("TCPX_TEST_TURNS", 100) / 100);

    return turns > 0 ? turns : 1;
}

/* A file below BUILD; the program is BUILD/tests/FOLDER/NAME. Good until the next call. */
static inline const char *path_in_build(const char *name)
{
    static char path[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);

    path[length > 0 ? length : 0] = '\0';
    for (int i = 0; i < 3 && *path != '\0'; i++)
        *strrchr(path, '/') = '\0';
    snprintf(path + strlen(path), PATH_MAX, "/%s", name);
    return path;
}

/* --- what this process has ------------------------------------------------------------------- */

/* Of a folder; -1: it cannot be opened. */
static inline int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    if (folder == NULL)
        return -1;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static inline int open_descriptors(void)
{
    return count_entries("/proc/self/fd");
}

static inline int running_threads(void)
{
    return count_entries("/proc/self/task");
}

/* Of this process, by their names. */
static inline unsigned threads_called(const char *beginning)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned count = 0;

    while ((entry = readdir(folder)) != NULL) {
        char path[300];
        char name[32] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(name, sizeof name, file) != NULL &&
            strncmp(name, beginning, strlen(beginning)) == 0)
            count++;
        fclose(file);
    }
    closedir(folder);
    return count;
}

#endif
