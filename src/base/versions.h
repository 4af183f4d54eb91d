/*
 * Versions of a protocol: each side says the least and the greatest that it speaks, so that nodes
 * can be upgraded one by one.
 */
#ifndef TCPX_BASE_VERSIONS_H
#define TCPX_BASE_VERSIONS_H

struct versions {
    unsigned least;
    unsigned greatest;
};

/* The greatest that both speak; 0: there is none. */
static inline unsigned versions_common(struct versions ours, struct versions theirs)
{
    unsigned greatest = ours.greatest < theirs.greatest ? ours.greatest : theirs.greatest;

    return greatest >= ours.least && greatest >= theirs.least ? greatest : 0;
}

#endif
