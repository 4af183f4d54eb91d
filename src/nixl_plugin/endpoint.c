/*
 * What other agents are told of this one, and how they read it: where it is reached, as a line of
 * text, and the key of a region, as bytes. Both come from the network at the reader, who trusts
 * neither.
 */
#include "nixl_plugin/agent.h"

#include "base/text.h"
#include "net/device/device.h"
#include "net/socket/socket.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A later version may add words at the end of the line. */
static const char first_words[] = "tcpx 1";

/* --- finding ------------------------------------------------------------------------------- */

static int endpoint_make_identity(struct endpoint *endpoint)
{
    uint8_t random[16];
    int result = socket_random(random, sizeof random);

    if (result != TCPX_SUCCESS)
        return result;
    strcpy(endpoint->identity, "nixl-");
    for (size_t i = 0; i < sizeof random; i++)
        sprintf(endpoint->identity + 5 + 2 * i, "%02x", random[i]);
    return TCPX_SUCCESS;
}

static bool endpoint_is_link_local(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const union socket_address *)address)->ipv6.sin6_addr);
}

/* Further ones than there is room for are left out. */
static void endpoint_add_address(struct endpoint *endpoint, const char *address)
{
    if (endpoint->address_count < ENDPOINT_ADDRESSES && strlen(address) < INET6_ADDRSTRLEN)
        strcpy(endpoint->addresses[endpoint->address_count++], address); /* NOLINT: it fits */
}

/* The scope of a link-local address says nothing on another host, so these are left out. */
static void endpoint_add_device(struct endpoint *endpoint, const struct net_device *device)
{
    char name[SOCKET_NAME_BYTES];

    if (endpoint_is_link_local(&device->address))
        return;
    socket_host_name(&device->address, name);
    endpoint_add_address(endpoint, name);
}

int endpoint_find(const char *advertise, struct endpoint *endpoint)
{
    struct net_device devices[NET_DEVICES_MOST];
    int count;
    int all;
    int result;

    *endpoint = (struct endpoint){.port = 0};
    result = endpoint_make_identity(endpoint);
    if (result != TCPX_SUCCESS)
        return result;
    if (*advertise != '\0') {
        endpoint_add_address(endpoint, advertise);
        return TCPX_SUCCESS;
    }
    result = net_devices_find_all_configured(devices, NET_DEVICES_MOST, &count, &all);
    if (result != TCPX_SUCCESS)
        return result;
    for (int i = 0; i < all; i++)
        endpoint_add_device(endpoint, &devices[i]);
    if (endpoint->address_count == 0)
        return error_set(TCPX_SYSTEM_ERROR, "no network interface has an address that peers of "
                                            "other hosts could use");
    return TCPX_SUCCESS;
}

/* --- the line ------------------------------------------------------------------------------ */

void endpoint_write(const struct endpoint *endpoint, char text[ENDPOINT_BYTES])
{
    int length =
        snprintf(text, ENDPOINT_BYTES, "%s %s %d", first_words, endpoint->identity, endpoint->port);

    for (unsigned i = 0; i < endpoint->address_count; i++)
        length +=
            snprintf(text + length, ENDPOINT_BYTES - (size_t)length, " %s", endpoint->addresses[i]);
}

static bool endpoint_is_address(const char *word)
{
    struct in6_addr any;

    return inet_pton(AF_INET, word, &any) == 1 || inet_pton(AF_INET6, word, &any) == 1;
}

static bool endpoint_read_words(char *line, struct endpoint *endpoint)
{
    char *rest;
    char *word;
    int used = 0;

    if (sscanf(line, "tcpx 1 %39[!-~]%*1[ ]%5d%n", endpoint->identity, &endpoint->port, &used) !=
            2 ||
        endpoint->port < 1 || endpoint->port > 65535)
        return false;
    for (word = strtok_r(line + used, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        if (endpoint_is_address(word))
            endpoint_add_address(endpoint, word);
    return endpoint->address_count > 0;
}

int endpoint_read(struct nixl_text text, struct endpoint *endpoint)
{
    char line[ENDPOINT_BYTES];
    char shown[128];

    *endpoint = (struct endpoint){.port = 0};
    text_printable(text.bytes, text.length, shown, sizeof shown);
    if (text.length >= sizeof line || memchr(text.bytes, '\0', text.length) != NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "\"%s\" is not how an agent of TCPX is reached",
                         shown);
    memcpy(line, text.bytes, text.length);
    line[text.length] = '\0';
    if (endpoint_read_words(line, endpoint))
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT,
                     "\"%s\" is not how an agent of TCPX is reached: expected \"%s NAME PORT "
                     "ADDRESS...\"",
                     shown, first_words);
}

/* --- keys ---------------------------------------------------------------------------------- */

static void put_number(uint8_t *out, uint64_t number, size_t bytes)
{
    uint64_t little = htole64(number);

    memcpy(out, &little, bytes);
}

static uint64_t get_number(const uint8_t *in, size_t bytes)
{
    uint64_t little = 0;

    memcpy(&little, in, bytes);
    return le64toh(little);
}

void region_key_write(const struct region_key *key, uint8_t out[REGION_KEY_BYTES])
{
    put_number(out, 1, 2); /* the version */
    put_number(out + 2, (uint64_t)key->port, 2);
    put_number(out + 4, (uint64_t)key->gpu + 1, 4);
    put_number(out + 8, key->address, 8);
    put_number(out + 16, key->bytes, 8);
    memcpy(out + 24, key->key, TCPX_KEY_BYTES);
}

int region_key_read(struct nixl_text text, struct region_key *key)
{
    uint8_t in[REGION_KEY_BYTES];

    if (text.length < sizeof in)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%zu bytes are not the key of a region of TCPX: it has %zu", text.length,
                         sizeof in);
    memcpy(in, text.bytes, sizeof in);
    *key = (struct region_key){.port = (int)get_number(in + 2, 2),
                               .gpu = (int)((int64_t)get_number(in + 4, 4) - 1),
                               .address = get_number(in + 8, 8),
                               .bytes = get_number(in + 16, 8)};
    memcpy(key->key, in + 24, TCPX_KEY_BYTES);
    if (get_number(in, 2) != 1 || key->gpu < HOST || key->port < 1)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the key of a region is of another version of TCPX");
    return TCPX_SUCCESS;
}
