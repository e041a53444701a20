/* Ends an ext4 filesystem as a power cut would: nothing that was not synced is written any more, the journal
 * included. Usage: cut MOUNTPOINT. Built by native.rs. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

#define SHUTDOWN _IOR('X', 125, uint32_t)
#define NO_LOG_FLUSH 2u

int main(int count, char **arguments)
{
    uint32_t flags = NO_LOG_FLUSH;
    int fd = count == 2 ? open(arguments[1], O_RDONLY) : -1;
    if (fd < 0 || ioctl(fd, SHUTDOWN, &flags) != 0) {
        perror("cut");
        return 1;
    }
    return 0;
}
