/* Completions of zero-copy sends, from the error queue of their socket. */
#include "net/devmem/devmem.h"

#include <errno.h>
#include <time.h>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* Numbers that older headers lack. */
enum { OPTION_ZEROCOPY = 60, ORIGIN_ZEROCOPY = 5 };

int zerocopy_allow(int socket)
{
    int on = 1;

    if (setsockopt(socket, SOL_SOCKET, OPTION_ZEROCOPY, &on, sizeof on) != 0)
        return error_system(errno, "sending without a copy");
    return TCPX_SUCCESS;
}

bool zerocopy_has_room(const struct zerocopy *sends)
{
    return sends->next - sends->oldest < ZEROCOPY_MOST;
}

bool zerocopy_in_flight(const struct zerocopy *sends)
{
    return sends->next != sends->oldest;
}

uint64_t zerocopy_bytes_of(const struct zerocopy *sends, const void *owner)
{
    uint64_t bytes = 0;

    for (uint32_t i = sends->oldest; i != sends->next; i++)
        if (sends->ring[i % ZEROCOPY_MOST].owner == owner)
            bytes += sends->ring[i % ZEROCOPY_MOST].bytes;
    return bytes;
}

void zerocopy_started(struct zerocopy *sends, void *owner, uint64_t bytes)
{
    sends->ring[sends->next++ % ZEROCOPY_MOST] =
        (struct zerocopy_send){.owner = owner, .bytes = bytes};
}

/* After a retransmission completions may arrive out of order. */
bool zerocopy_complete(struct zerocopy *sends, uint32_t first, uint32_t last)
{
    uint32_t in_flight = sends->next - sends->oldest;

    if (first - sends->oldest >= in_flight || last - sends->oldest >= in_flight ||
        first - sends->oldest > last - sends->oldest)
        return false;
    for (uint32_t i = first; i != last + 1; i++)
        sends->ring[i % ZEROCOPY_MOST].completed = true;
    return true;
}

bool zerocopy_has_completed(const struct zerocopy *sends)
{
    return zerocopy_in_flight(sends) && sends->ring[sends->oldest % ZEROCOPY_MOST].completed;
}

bool zerocopy_take(struct zerocopy *sends, void **owner, uint64_t *bytes)
{
    const struct zerocopy_send *oldest = &sends->ring[sends->oldest % ZEROCOPY_MOST];

    if (!zerocopy_has_completed(sends))
        return false;
    *owner = oldest->owner;
    *bytes = oldest->bytes;
    sends->oldest++;
    return true;
}

/* Errors of other origins, such as an unreachable host, are left to the next send. */
static int zerocopy_read_notices(struct zerocopy *sends, struct msghdr *message)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL;
         control = CMSG_NXTHDR(message, control)) {
        struct sock_extended_err notice;

        if (control->cmsg_len < CMSG_LEN(sizeof notice) ||
            !((control->cmsg_level == SOL_IP && control->cmsg_type == IP_RECVERR) ||
              (control->cmsg_level == SOL_IPV6 && control->cmsg_type == IPV6_RECVERR)))
            continue;
        memcpy(&notice, CMSG_DATA(control), sizeof notice);
        if (notice.ee_origin != ORIGIN_ZEROCOPY || notice.ee_errno != 0)
            continue;
        if (!zerocopy_complete(sends, notice.ee_info, notice.ee_data))
            return error_set(TCPX_INTERNAL_ERROR,
                             "the kernel says that sends %u to %u are over, of which there are "
                             "those from %u up to %u",
                             notice.ee_info, notice.ee_data, sends->oldest, sends->next);
    }
    return TCPX_SUCCESS;
}

int zerocopy_poll(struct zerocopy *sends, int socket)
{
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && zerocopy_in_flight(sends)) {
        _Alignas(struct cmsghdr) char control[256];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};

        if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN || errno == EWOULDBLOCK
                       ? TCPX_SUCCESS
                       : error_system(errno, "what became of sends");
        }
        result = zerocopy_read_notices(sends, &message);
    }
    return result;
}
