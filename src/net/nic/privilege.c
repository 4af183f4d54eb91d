/* Capabilities by the system call itself, since that takes no library. */
#include "net/nic/privilege.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

int privilege_check_net_admin(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data) != 0)
        return error_system(errno, "the capabilities of this process");
    if ((data[0].effective & (UINT32_C(1) << CAP_NET_ADMIN)) == 0)
        return error_set(TCPX_SYSTEM_ERROR,
                         "this process may not bind receive queues: it lacks CAP_NET_ADMIN (run it "
                         "as root, or setcap cap_net_admin+ep on the program)");
    return TCPX_SUCCESS;
}
