/* What help() says of each type and method. */
#ifndef TCPX_PYTHON_DOCS_H
#define TCPX_PYTHON_DOCS_H

/* The first line is the signature, which inspect and help() take from there. */

#define DOC_CONNECT                                                                                \
    "connect($module, /, host, port=12345, *, gpu=None, name='', secret=None, windows=False,\n"    \
    "        channels=0, plugin=None, no_kernels=False, timeout=60.0)\n"                           \
    "--\n\n"                                                                                       \
    "Reaches a peer that listens, or begins to do so before the time is over.\n\n"                 \
    "gpu: the number of the GPU whose memory will be moved; None: host memory only.\n"             \
    "name: of this process, for the peer: Session.peer.\n"                                         \
    "secret: a file whose content both sides know; nobody but its owner may read it.\n"            \
    "windows: whether the peer may read and write windows of this process by their keys.\n"        \
    "channels: connections in each direction; 0: as the environment says, else one for each "      \
    "NIC.\n"                                                                                       \
    "plugin: the transport: 'builtin', or the file of a network plugin; None: what there is.\n"    \
    "no_kernels: transfers wait for no kernel of the program, also not for one that waits for\n"   \
    "them; lists of many small pieces of GPU memory take longer.\n"                                \
    "timeout: in seconds; then a tcpx.Timeout is raised. None: 60.\n\n"                            \
    "In asyncio: session = await asyncio.to_thread(tcpx.connect, host)."

#define DOC_LISTEN                                                                                 \
    "listen($module, /, address=None, port=12345, *, gpu=None, name='', secret=None,\n"            \
    "       windows=False, channels=0, plugin=None, no_kernels=False)\n"                           \
    "--\n\n"                                                                                       \
    "Waits on a port for peers: a Listener.\n\n"                                                   \
    "address: a name or number of this machine; None: all. Port 0: the kernel chooses, and\n"      \
    "Listener.port says which one. The rest is as in connect(), for all sessions."

#define DOC_GPUS                                                                                   \
    "gpus($module, /)\n--\n\n"                                                                     \
    "The GPUs of this machine, a dict each: index, name, emulated, pci_path, numa_node, dmabuf,\n" \
    "compute, memory_bytes. Where there is no GPU, tcpx emulates them in ordinary memory."

#define DOC_LISTENER                                                                               \
    "A port on which peers can come, made by tcpx.listen(). One after the other:\n\n"              \
    "    session = listener.accept()\n\n"                                                          \
    "or, in asyncio:\n\n"                                                                          \
    "    async for session in listener:\n"                                                         \
    "        ..."

#define DOC_LISTENER_ACCEPT                                                                        \
    "accept($self, /, timeout=None)\n--\n\n"                                                       \
    "Waits for one peer: its Session. timeout: in seconds; None: until one comes.\n\n"             \
    "A peer that comes and does not fit (another transport, number of channels, ...) raises an\n"  \
    "exception; the next call goes on."

#define DOC_LISTENER_SERVE                                                                         \
    "serve($self, /, on_note=None, on_session=None)\n--\n\n"                                       \
    "Accepts all peers in threads of its own, from now until close(), and returns at once.\n\n"    \
    "on_session(session) is called for each peer, and on_note(session, note) for each note, in\n"  \
    "their order and one at a time. A session is closed when its peer is gone."

#define DOC_LISTENER_CLOSE                                                                         \
    "close($self, /)\n--\n\n"                                                                      \
    "No peer comes any more. Sessions of accept() go on; those of serve() are closed."

#define DOC_SESSION                                                                                \
    "The connection to one peer process, made by tcpx.connect() or Listener.accept().\n\n"         \
    "Both sides can send and receive, and read and write windows of the other, at the same time\n" \
    "and from any thread. It is a context manager, also for async with."

#define DOC_SESSION_SEND                                                                           \
    "send($self, /, object, tag=0, *, after=None)\n--\n\n"                                         \
    "Begins to send the memory of an object, and returns a Transfer at once.\n\n"                  \
    "The k-th receive of a tag at the peer takes the k-th send of that tag, and must have as\n"    \
    "many bytes. The object must not change until the transfer is done; it is kept alive.\n"       \
    "after: what must have happened on the GPU before: a stream (a number, or one of torch or\n"   \
    "cupy), an event of torch, or 'current', the current stream of torch or cupy. None: the\n"     \
    "program has waited for everything that concerns the memory."

#define DOC_SESSION_RECEIVE                                                                        \
    "receive($self, /, object, tag=0, *, after=None)\n--\n\n"                                      \
    "Begins to receive into the memory of an object, and returns a Transfer at once. As send()."

#define DOC_SESSION_REMOTE                                                                         \
    "remote($self, /, key, *, block=None)\n--\n\n"                                                 \
    "A window of the peer, by its key: a Remote. block: the bytes of a block, for blocks().\n"     \
    "The peer is not asked: a key that it refuses fails the first read or write."

#define DOC_SESSION_READ                                                                           \
    "read($self, /, here, there, *, note=None, after=None, timeout=None)\n--\n\n"                  \
    "Begins to read memory of the peer, which makes no call for it; returns a Transfer.\n\n"       \
    "here: parts of windows of this side, a Window, or any object with memory.\n"                  \
    "there: parts of remotes of this session, or a Remote: its first bytes.\n"                     \
    "note: bytes for the peer's program, when all is here.\n"                                      \
    "after: as in send(), for the memory of this side.\n"                                          \
    "timeout: in seconds; then it is cancelled, and fails with tcpx.Timeout. None: as\n"           \
    "UCCL_TCPX_TIMEOUT_MS says, 60 s without it."

#define DOC_SESSION_WRITE                                                                          \
    "write($self, /, here, there, *, note=None, after=None, timeout=None)\n--\n\n"                 \
    "Begins to write memory of the peer: done when the bytes are there, and the note comes "       \
    "after\n"                                                                                      \
    "them. As read()."

#define DOC_SESSION_NOTE                                                                           \
    "note($self, /, data, *, timeout=60.0)\n--\n\n"                                                \
    "Sends the peer's program a note of up to 32 KiB by itself. It waits only while 1 MiB of\n"    \
    "notes have not been taken there."

#define DOC_SESSION_NOTES                                                                          \
    "notes($self, /, timeout=0.0)\n--\n\n"                                                         \
    "Takes all notes that have come, in their order: a list of bytes. With a timeout it waits\n"   \
    "until there is one, and returns an empty list if none has come; None: until one comes."

#define DOC_SESSION_WAIT_NOTES                                                                     \
    "wait_notes($self, /)\n--\n\n"                                                                 \
    "To be awaited: all notes that have come, as soon as there is one."

#define DOC_SESSION_STATISTICS                                                                     \
    "statistics($self, /)\n--\n\n"                                                                 \
    "What was moved, and where the time went: a dict with the counters of tcpx.h."

#define DOC_SESSION_CLOSE                                                                          \
    "close($self, /)\n--\n\n"                                                                      \
    "Ends the session. What was sent and is done arrives; a transfer that has not ended raises\n"  \
    "tcpx.Cancelled. When it returns, nothing touches the memory of any transfer."

#define DOC_SESSION_FILENO                                                                         \
    "fileno($self, /)\n--\n\n"                                                                     \
    "An eventfd for a loop of the program's own, readable when a transfer has ended, a note has\n" \
    "come, or the session has failed. Not together with asyncio on the same session."

#define DOC_TRANSFER                                                                               \
    "A transfer that was begun. It can be awaited; a task that is cancelled meanwhile cancels\n"   \
    "the transfer and waits until it has ended. To lose it loses nothing: it goes on, and its\n"   \
    "session keeps the memory alive."

#define DOC_TRANSFER_DONE                                                                          \
    "done($self, /, stream=None)\n--\n\n"                                                          \
    "Whether it is done; raises the exception if it has failed. With a stream, a receive may be\n" \
    "done earlier: for work that is put on that stream from now on."

#define DOC_TRANSFER_WAIT                                                                          \
    "wait($self, /, timeout=None)\n--\n\n"                                                         \
    "Waits until it is done; raises the exception if it has failed. timeout: in seconds; then\n"   \
    "tcpx.Timeout is raised, and the transfer goes on. None: until it has ended."

#define DOC_TRANSFER_CANCEL                                                                        \
    "cancel($self, /)\n--\n\n"                                                                     \
    "Ends it early. When this returns, no byte of this side's memory is read or written for it\n"  \
    "any more. wait() then raises tcpx.Cancelled, unless it was done before. A transfer that\n"    \
    "goes in chunks (several channels, or a plugin) cannot be cancelled: tcpx.UsageError."

#define DOC_WINDOW                                                                                 \
    "Window(object, *, read=False, write=False, block=None)\n--\n\n"                               \
    "Memory of this process that peers may read or write by its key, without a call here.\n\n"     \
    "With neither it is for reads and writes of this side only. block: the bytes of a block, "     \
    "for\n"                                                                                        \
    "blocks(). It belongs to the process, not to a session, and keeps the object alive until it\n" \
    "is closed; sessions need windows=True to let peers in.\n\n"                                   \
    "    window = tcpx.Window(cache, read=True, block=cache[0].nbytes)\n"                          \
    "    window.key                # for the peer\n"                                               \
    "    window.blocks([7, 3, 12]) # parts of it, by numbers\n"                                    \
    "    window[0:4096]            # by bytes"

#define DOC_WINDOW_BLOCKS                                                                          \
    "blocks($self, numbers, /)\n--\n\n"                                                            \
    "Parts of it: blocks by their numbers, a sequence or an array of integers."

#define DOC_WINDOW_CLOSE                                                                           \
    "close($self, /, timeout=60.0)\n--\n\n"                                                        \
    "Gives up everything that uses it, in all sessions. When it returns, no byte of its memory\n"  \
    "is read or written any more, which takes about a millisecond and never needs a peer."

#define DOC_REMOTE                                                                                 \
    "A window of the peer, made by Session.remote(). remote[a:b] are parts of it, by bytes."

#define DOC_REMOTE_BLOCKS                                                                          \
    "blocks($self, numbers, /)\n--\n\n"                                                            \
    "Parts of it: blocks by their numbers, a sequence or an array of integers."

#define DOC_PARTS                                                                                  \
    "Ranges of windows, or of remotes, in their order; a + b are both. A read or a write moves\n"  \
    "the bytes of one such list to another, which may be cut differently: the sums are equal."

#define DOC_GPU_MEMORY                                                                             \
    "GpuMemory(nbytes, gpu=0)\n--\n\n"                                                             \
    "Memory of a GPU, for programs without torch or cupy, and for emulated GPUs, whose memory\n"   \
    "only tcpx reaches. It has __cuda_array_interface__."

#define DOC_GPU_MEMORY_WRITE                                                                       \
    "write($self, /, data, offset=0)\n--\n\n"                                                      \
    "Copies bytes to it."

#define DOC_GPU_MEMORY_READ                                                                        \
    "read($self, /, offset=0, nbytes=None)\n--\n\n"                                                \
    "Copies bytes out of it. nbytes None: up to its end."

#endif
