/* One socket per call: calls are rare, and a socket that is kept would pass through forks. */
#include "net/nic/ethtool.h"

#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int ethtool_call(const char *interface, void *command)
{
    struct ifreq request = {.ifr_data = command};
    int error;
    int fd;

    if (strlen(interface) >= sizeof request.ifr_name)
        return ENODEV;
    memcpy(request.ifr_name, interface, strlen(interface) + 1);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    error = ioctl(fd, SIOCETHTOOL, &request) == 0 ? 0 : errno;
    close(fd);
    return error;
}
