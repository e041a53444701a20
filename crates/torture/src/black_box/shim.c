/* Preloaded into the server: stands between it and the disk's syncs. Built and steered by native.rs.
 *
 * WAYHOLD_SHIM_LOG    file that gets one line per sync, appended after the call returned:
 *                     "<result> <path>\n", so whoever sees an effect of the sync finds its line.
 * WAYHOLD_SHIM_RULES  file that holds what to do, read anew at each sync and replaced by rename. A line is
 *                     "<generation> <action> <nth> <milliseconds> <pattern>"; the pattern is fnmatch's, the
 *                     n-th matching sync since a generation was first seen is the one that is meant.
 *
 * Actions: fail-once, fail (it and all later), swallow (it and all later: say yes and do nothing), delay (it
 * and all later), kill-before, kill-after. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*sync_call)(int);

struct rule {
    long generation, nth, milliseconds;
    char action[32], pattern[512];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long seen_generation, seen;

static int read_rule(struct rule *rule)
{
    const char *name = getenv("WAYHOLD_SHIM_RULES");
    char text[1024];
    if (!name) return 0;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    return sscanf(text, "%ld %31s %ld %ld %511s", &rule->generation, rule->action, &rule->nth,
                  &rule->milliseconds, rule->pattern) == 5;
}

/* Which matching sync this is, or 0 when the rule does not mean its path. */
static long count(const struct rule *rule, const char *path)
{
    long number = 0;
    if (fnmatch(rule->pattern, path, 0) != 0) return 0;
    pthread_mutex_lock(&lock);
    if (seen_generation != rule->generation) {
        seen_generation = rule->generation;
        seen = 0;
    }
    number = ++seen;
    pthread_mutex_unlock(&lock);
    return number;
}

static void note(const char *path, int result)
{
    const char *name = getenv("WAYHOLD_SHIM_LOG");
    char line[640];
    if (!name) return;
    int length = snprintf(line, sizeof line, "%d %s\n", result, path);
    int fd = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, length) != length) abort();
    close(fd);
}

static int intercept(int fd, sync_call real)
{
    struct rule rule;
    char link[64], path[512];
    int result, is = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    long number = read_rule(&rule) ? count(&rule, path) : 0;
    if (number) is = number == rule.nth;
#define DOES(name) (number && strcmp(rule.action, name) == 0)
    if (is && DOES("kill-before")) kill(getpid(), SIGKILL);
    if (DOES("delay") && number >= rule.nth) {
        struct timespec time = {rule.milliseconds / 1000, rule.milliseconds % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
    if ((is && DOES("fail-once")) || (DOES("fail") && number >= rule.nth)) {
        note(path, -1);
        errno = EIO;
        return -1;
    }
    if (DOES("swallow") && number >= rule.nth) result = 0;
    else result = real(fd);
    int error = errno;
    note(path, result);
    if (is && DOES("kill-after")) kill(getpid(), SIGKILL);
    errno = error;
    return result;
}

int fsync(int fd)
{
    return intercept(fd, (sync_call)dlsym(RTLD_NEXT, "fsync"));
}

int fdatasync(int fd)
{
    return intercept(fd, (sync_call)dlsym(RTLD_NEXT, "fdatasync"));
}
