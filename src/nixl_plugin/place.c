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

static int place_make_identity(struct place *place)
{
    uint8_t random[16];
    int result = socket_random(random, sizeof random);

    if (result != TCPX_SUCCESS)
        return result;
    strcpy(place->identity, "nixl-");
    for (size_t i = 0; i < sizeof random; i++)
        sprintf(place->identity + 5 + 2 * i, "%02x", random[i]);
    return TCPX_SUCCESS;
}

static bool place_is_link_local(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const union socket_address *)address)->ipv6.sin6_addr);
}

/* Further ones than there is room for are left out. */
static void place_add_address(struct place *place, const char *address)
{
    if (place->address_count < PLACE_ADDRESSES && strlen(address) < INET6_ADDRSTRLEN)
        strcpy(place->addresses[place->address_count++], address); /* NOLINT: it fits */
}

/* The scope of a link-local address says nothing on another host, so these are left out. */
static void place_add_device(struct place *place, const struct net_device *device)
{
    char name[SOCKET_NAME_BYTES];

    if (place_is_link_local(&device->address))
        return;
    socket_host_name(&device->address, name);
    place_add_address(place, name);
}

int place_find(const char *advertise, struct place *place)
{
    struct net_device devices[NET_DEVICES_MOST];
    int count;
    int all;
    int result;

    *place = (struct place){.port = 0};
    result = place_make_identity(place);
    if (result != TCPX_SUCCESS)
        return result;
    if (*advertise != '\0') {
        place_add_address(place, advertise);
        return TCPX_SUCCESS;
    }
    result = net_devices_find_all_configured(devices, NET_DEVICES_MOST, &count, &all);
    if (result != TCPX_SUCCESS)
        return result;
    for (int i = 0; i < all; i++)
        place_add_device(place, &devices[i]);
    if (place->address_count == 0)
        return error_set(TCPX_SYSTEM_ERROR, "no network interface has an address that peers of "
                                            "other hosts could use");
    return TCPX_SUCCESS;
}

/* --- the line ------------------------------------------------------------------------------ */

void place_write(const struct place *place, char text[PLACE_BYTES])
{
    int length = snprintf(text, PLACE_BYTES, "%s %s %d", first_words, place->identity, place->port);

    for (unsigned i = 0; i < place->address_count; i++)
        length += snprintf(text + length, PLACE_BYTES - (size_t)length, " %s", place->addresses[i]);
}

static bool place_is_address(const char *word)
{
    struct in6_addr any;

    return inet_pton(AF_INET, word, &any) == 1 || inet_pton(AF_INET6, word, &any) == 1;
}

static bool place_read_words(char *line, struct place *place)
{
    char *rest;
    char *word;
    int used = 0;

    if (sscanf(line, "tcpx 1 %39[!-~]%*1[ ]%5d%n", place->identity, &place->port, &used) != 2 ||
        place->port < 1 || place->port > 65535)
        return false;
    for (word = strtok_r(line + used, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        if (place_is_address(word))
            place_add_address(place, word);
    return place->address_count > 0;
}

int place_read(struct nixl_text text, struct place *place)
{
    char line[PLACE_BYTES];
    char shown[128];

    *place = (struct place){.port = 0};
    text_printable(text.bytes, text.length, shown, sizeof shown);
    if (text.length >= sizeof line || memchr(text.bytes, '\0', text.length) != NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "\"%s\" is not how an agent of TCPX is reached",
                         shown);
    memcpy(line, text.bytes, text.length);
    line[text.length] = '\0';
    if (place_read_words(line, place))
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
                               .gpu = (int)get_number(in + 4, 4) - 1,
                               .address = get_number(in + 8, 8),
                               .bytes = get_number(in + 16, 8)};
    memcpy(key->key, in + 24, TCPX_KEY_BYTES);
    if (get_number(in, 2) != 1 || key->gpu < HOST || key->port < 1)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the key of a region is of another version of TCPX");
    return TCPX_SUCCESS;
}
