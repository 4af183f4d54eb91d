/*
 * Packets of a TUN device with offloads (IFF_VNET_HDR): the kernel hands over up to 64 KiB of one
 * TCP stream at once, as it would to a NIC that cuts them into segments itself. Here is how many
 * segments a packet stands for, what they are on the wire, and how a range of them is cut out.
 */
#ifndef TCPX_TESTS_NET_OFFLOAD_H
#define TCPX_TESTS_NET_OFFLOAD_H

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { OFFLOAD_HEADER = sizeof(struct virtio_net_hdr) };

/* What a packet consists of; the virtio header lies before its IP header. */
struct offload {
    unsigned segments;   /* 1 of a packet that is not to be cut */
    size_t headers;      /* bytes of IP and TCP, which every segment has */
    size_t payload;      /* of all segments together; 0 if there is one */
    size_t segment_size; /* payload of each but the last */
};

static struct offload offload_read(const unsigned char *data, size_t size)
{
    struct virtio_net_hdr header;
    struct tcphdr tcp;
    struct offload packet = {.segments = 1, .headers = size - OFFLOAD_HEADER};

    memcpy(&header, data, sizeof header);
    if (header.gso_type == VIRTIO_NET_HDR_GSO_NONE || header.gso_size == 0 ||
        OFFLOAD_HEADER + header.csum_start + sizeof tcp > size)
        return packet;
    memcpy(&tcp, data + OFFLOAD_HEADER + header.csum_start, sizeof tcp);
    packet.headers = header.csum_start + (size_t)tcp.doff * 4;
    packet.payload = size - OFFLOAD_HEADER - packet.headers;
    packet.segment_size = header.gso_size;
    packet.segments = (unsigned)((packet.payload + packet.segment_size - 1) / packet.segment_size);
    return packet;
}

/* Its checksum is there already, and not left to the device. */
static bool offload_has_checksum(const unsigned char *data)
{
    return (data[offsetof(struct virtio_net_hdr, flags)] & VIRTIO_NET_HDR_F_NEEDS_CSUM) == 0;
}

static size_t offload_wire_bytes(const struct offload *packet)
{
    return packet->segments * packet->headers + packet->payload;
}

static uint32_t offload_fold(uint32_t sum)
{
    while (sum > 0xffff)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static uint16_t offload_ip_checksum(const unsigned char *ip, size_t bytes)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < bytes; i += 2)
        sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
    return htons((uint16_t)~offload_fold(sum));
}

/* `first`: how many segments lie before this one; `bytes`: of the IP header and all behind it. */
static void offload_fix_ip(unsigned char *ip, size_t ip_bytes, unsigned first, size_t bytes)
{
    if (ip[0] >> 4 == 6) {
        uint16_t length = htons((uint16_t)(bytes - sizeof(struct ip6_hdr)));

        memcpy(ip + offsetof(struct ip6_hdr, ip6_plen), &length, sizeof length);
    } else {
        struct iphdr header;

        memcpy(&header, ip, sizeof header);
        header.tot_len = htons((uint16_t)bytes);
        header.id = htons((uint16_t)(ntohs(header.id) + first));
        header.check = 0;
        memcpy(ip, &header, sizeof header);
        header.check = offload_ip_checksum(ip, ip_bytes);
        memcpy(ip, &header, sizeof header);
    }
}

/* The checksum is the one of the pseudo header: the kernel never computed the rest. */
static void offload_fix_tcp(unsigned char *at, const struct offload *whole, unsigned first,
                            unsigned count, uint32_t left_out)
{
    struct tcphdr tcp;

    memcpy(&tcp, at, sizeof tcp);
    tcp.seq = htonl(ntohl(tcp.seq) + (uint32_t)(first * whole->segment_size));
    if (first > 0)
        tcp.res2 &= 1u; /* CWR is the first one's */
    if (first + count < whole->segments)
        tcp.fin = tcp.psh = 0;
    tcp.check = htons((uint16_t)offload_fold(ntohs(tcp.check) + 0xffffu - left_out));
    memcpy(at, &tcp, sizeof tcp);
}

/* Writes `count` segments behind the first ones to `to`, as a packet of its own; returns its size.
 */
static size_t offload_cut(const unsigned char *data, const struct offload *whole, unsigned first,
                          unsigned count, unsigned char *to)
{
    size_t from = first * whole->segment_size;
    size_t rest = whole->payload - from;
    size_t payload = count * whole->segment_size < rest ? count * whole->segment_size : rest;
    struct virtio_net_hdr header;

    if (count == whole->segments) {
        memcpy(to, data, OFFLOAD_HEADER + whole->headers + whole->payload);
        return OFFLOAD_HEADER + whole->headers + whole->payload;
    }
    memcpy(&header, data, sizeof header);
    memcpy(to, data, OFFLOAD_HEADER + whole->headers);
    memcpy(to + OFFLOAD_HEADER + whole->headers, data + OFFLOAD_HEADER + whole->headers + from,
           payload);
    offload_fix_ip(to + OFFLOAD_HEADER, header.csum_start, first, whole->headers + payload);
    offload_fix_tcp(to + OFFLOAD_HEADER + header.csum_start, whole, first, count,
                    (uint32_t)(whole->payload - payload));
    if (count == 1) {
        header.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        header.gso_size = 0;
    }
    memcpy(to, &header, sizeof header);
    return OFFLOAD_HEADER + whole->headers + payload;
}

#endif
