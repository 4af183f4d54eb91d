/* Generic netlink, by hand: one request, one answer, each within a second. */
#include "tools/doctor_netlink.h"

#include <errno.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { REQUEST_BYTES = 256, ANSWER_BYTES = 1 << 16 };

/* Numbers of the interface, which older headers lack. */
enum { RINGS_TCP_DATA_SPLIT = 11 };

struct request {
    struct nlmsghdr head;
    struct genlmsghdr command;
    char attributes[REQUEST_BYTES];
};

struct answer {
    _Alignas(struct nlmsghdr) char bytes[ANSWER_BYTES];
    const char *attributes;
    size_t length;
};

static void begin(struct request *request, uint16_t family, uint8_t command)
{
    *request = (struct request){
        .head = {.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
                 .nlmsg_type = family,
                 .nlmsg_flags = NLM_F_REQUEST},
        .command = {.cmd = command, .version = 1},
    };
}

/* Names of interfaces and families are short: there is always room. */
static struct nlattr *add(struct request *request, uint16_t type, const char *text)
{
    struct nlattr *attribute =
        (struct nlattr *)((char *)request + NLMSG_ALIGN(request->head.nlmsg_len));
    size_t bytes = text != NULL ? strlen(text) + 1 : 0;

    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(NLA_HDRLEN + bytes);
    if (text != NULL)
        memcpy((char *)attribute + NLA_HDRLEN, text, bytes);
    request->head.nlmsg_len =
        (uint32_t)(NLMSG_ALIGN(request->head.nlmsg_len) + NLA_ALIGN(attribute->nla_len));
    return attribute;
}

static int check_answer(struct answer *answer, size_t bytes)
{
    const struct nlmsghdr *head = (const struct nlmsghdr *)answer->bytes;

    if (bytes < sizeof *head || head->nlmsg_len > bytes)
        return EPROTO;
    if (head->nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *error = NLMSG_DATA(head);

        if (head->nlmsg_len < NLMSG_LENGTH(sizeof *error) || error->error == 0)
            return EPROTO;
        return -error->error;
    }
    if (head->nlmsg_len < NLMSG_LENGTH(GENL_HDRLEN))
        return EPROTO;
    answer->attributes = (const char *)NLMSG_DATA(head) + GENL_HDRLEN;
    answer->length = head->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
    return 0;
}

static int ask(const struct request *request, struct answer *answer)
{
    const struct timeval patience = {.tv_sec = 1};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
    int error = 0;
    ssize_t got = 0;

    answer->attributes = NULL;
    answer->length = 0;
    if (fd < 0)
        return errno;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        send(fd, request, request->head.nlmsg_len, 0) < 0)
        error = errno;
    if (error == 0) {
        got = recv(fd, answer->bytes, sizeof answer->bytes, 0);
        error = got < 0 ? errno : check_answer(answer, (size_t)got);
    }
    close(fd);
    return error;
}

/* The first attribute of this type with at least `least` bytes; NULL: there is none. */
static const char *find(const char *attributes, size_t length, uint16_t type, size_t least,
                        size_t *bytes)
{
    while (length >= NLA_HDRLEN) {
        const struct nlattr *attribute = (const struct nlattr *)attributes;
        size_t whole = NLA_ALIGN(attribute->nla_len);

        if (attribute->nla_len < NLA_HDRLEN || attribute->nla_len > length)
            return NULL;
        *bytes = (size_t)attribute->nla_len - NLA_HDRLEN;
        if ((attribute->nla_type & NLA_TYPE_MASK) == type && *bytes >= least)
            return attributes + NLA_HDRLEN;
        if (whole >= length)
            return NULL;
        attributes += whole;
        length -= whole;
    }
    return NULL;
}

/* A list of nests, one for each command, numbered from 1 on. */
static uint64_t commands_in(const char *list, size_t length)
{
    uint64_t commands = 0;

    for (uint16_t i = 1; i <= 64; i++) {
        size_t bytes;
        const char *entry = find(list, length, i, 0, &bytes);
        const char *id;
        uint32_t command;

        if (entry == NULL)
            break;
        id = find(entry, bytes, CTRL_ATTR_OP_ID, sizeof command, &bytes);
        if (id == NULL)
            continue;
        memcpy(&command, id, sizeof command);
        if (command < 64)
            commands |= (uint64_t)1 << command;
    }
    return commands;
}

int netlink_family(const char *name, struct netlink_family *family)
{
    struct request request;
    struct answer answer;
    const char *found;
    size_t bytes;
    int error;

    begin(&request, GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
    add(&request, CTRL_ATTR_FAMILY_NAME, name);
    error = ask(&request, &answer);
    if (error != 0)
        return error;
    found = find(answer.attributes, answer.length, CTRL_ATTR_FAMILY_ID, sizeof family->id, &bytes);
    if (found == NULL)
        return EPROTO;
    memcpy(&family->id, found, sizeof family->id);
    found = find(answer.attributes, answer.length, CTRL_ATTR_OPS, 0, &bytes);
    family->commands = found != NULL ? commands_in(found, bytes) : 0;
    return 0;
}

int netlink_header_split(const char *interface, enum netlink_split *split)
{
    struct netlink_family ethtool;
    struct request request;
    struct answer answer;
    struct nlattr *nest;
    const char *found;
    size_t bytes;
    int error = netlink_family("ethtool", &ethtool);

    if (error != 0)
        return error;
    begin(&request, ethtool.id, ETHTOOL_MSG_RINGS_GET);
    nest = add(&request, ETHTOOL_A_RINGS_HEADER | NLA_F_NESTED, NULL);
    add(&request, ETHTOOL_A_HEADER_DEV_NAME, interface);
    nest->nla_len = (uint16_t)((char *)&request + request.head.nlmsg_len - (char *)nest);
    error = ask(&request, &answer);
    if (error != 0)
        return error;
    found = find(answer.attributes, answer.length, RINGS_TCP_DATA_SPLIT, 1, &bytes);
    if (found == NULL)
        return EOPNOTSUPP;
    *split = *found == 2 ? NETLINK_SPLIT_ON : *found == 1 ? NETLINK_SPLIT_OFF : NETLINK_SPLIT_AUTO;
    return 0;
}
