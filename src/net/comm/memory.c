/* The list of a comm's registered memory. */
#include "net/comm/memory.h"

void memory_add(struct net_comm *comm, struct net_memory *memory)
{
    comm_lock_take(&comm->lock);
    memory->next = comm->memories;
    memory->here = &comm->memories;
    if (memory->next != NULL)
        memory->next->here = &memory->next;
    comm->memories = memory;
    comm_lock_release(&comm->lock);
}

/* release() may wait for the kernel, and needs no lock. */
void memory_remove(struct net_comm *comm, struct net_memory *memory)
{
    comm_lock_take(&comm->lock);
    *memory->here = memory->next;
    if (memory->next != NULL)
        memory->next->here = memory->here;
    comm_lock_release(&comm->lock);
    memory->release(memory);
}

void memory_remove_all(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    for (struct net_memory *memory = comm->memories, *next; memory != NULL; memory = next) {
        next = memory->next;
        memory->release(memory);
    }
    comm->memories = NULL;
}
