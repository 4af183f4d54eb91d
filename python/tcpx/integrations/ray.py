"""A tensor transport for Ray: actors read each other's tensors by tcpx, of GPUs or of hosts.

    import tcpx.integrations.ray

    tcpx.integrations.ray.register()    # where actors are defined and created, before that

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="TCPX")
        def weights(self):
            return self.model.state_dict()

The actor that has an object opens a window for each of its tensors and publishes the keys with Ray's metadata. Who
needs the object connects to that actor, once, and reads all of its tensors by one access. Ray says when an object is
freed, and then its windows are closed. Needs Ray 2.60 or newer, and torch, or numpy for arrays of numpy.
"""

import os
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import ray.util
from ray.exceptions import RayDirectTransportError
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

import tcpx
from tcpx.integrations import joined

_MOST_SESSIONS = 256  # beyond it, the one that has not been used for longest is given up


@dataclass
class Metadata(TensorTransportMetadata):
    """What Ray carries from the owner of an object to those who read it."""

    owner: str = ""  # a process: a later one at the same address is another owner
    address: str = ""
    port: int = 0
    keys: list = field(default_factory=list)  # of a window for each tensor; None: the tensor has no bytes

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class Fetch(FetchRequest):
    """A read that was begun. `transfer` is None when it has ended, or where there is nothing to read."""

    transfer: Any = None
    session: Any = None
    expires: float = 0.0

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def cancel(self):
        transfer = self.transfer  # another thread may find that it has ended
        if transfer is not None:
            try:
                transfer.cancel()
            except tcpx.Error:
                pass  # it has ended, or its session has

    def __del__(self):
        self.cancel()


def _torch_gpu(device):
    """The number of a torch.device's GPU; None: host memory."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


class TensorTransport(TensorTransportManager):
    """One for each process. Ray calls it from several threads."""

    name = "TCPX"
    secret = None
    timeout = 60.0

    def __init__(self):
        self._lock = threading.Lock()  # guards all of the following
        self._owner = uuid.uuid4().hex
        self._listeners = {}  # by the number of the GPU
        self._objects = {}  # of this process: metadata and windows by the object's number
        self._sessions = OrderedDict()  # by owner and number of the GPU here
        self._fetches = weakref.WeakSet()

    def tensor_transport_backend(self):
        return self.name

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return True  # an actor without tcpx fails where Ray registers the transport on it

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("TCPX is one-sided: the receiver reads, and nothing is sent")

    # --- tensors; arrays of numpy are below --------------------------------------------------------------------

    @staticmethod
    def _place(tensors):
        """Their device as Ray names it, and the number of the GPU or None."""
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise ValueError(f"tensors of one object on {names}: tcpx moves objects of one device")
        device = devices.pop()
        return device.type, _torch_gpu(device)

    @staticmethod
    def _finish(gpu):
        """What was put on the GPU until now is done: a reader does not know of the streams here."""
        import torch

        torch.cuda.synchronize(gpu)

    @staticmethod
    def _new(metadata):
        import torch

        return [torch.empty(shape, dtype=dtype, device=metadata.tensor_device) for shape, dtype in metadata.tensor_meta]

    # --- the owner ---------------------------------------------------------------------------------------------

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        with self._lock:
            if obj_id not in self._objects:  # Ray may run a task again whose answer was lost
                self._objects[obj_id] = self._publish(rdt_object)
            return self._objects[obj_id][0]

    def _publish(self, tensors):
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if not tensors:
            return Metadata(tensor_meta=shapes), []
        device, gpu = self._place(tensors)
        if gpu is not None:
            self._finish(gpu)
        windows = [tcpx.Window(tensor, read=True) if tensor.nbytes else None for tensor in tensors]
        metadata = Metadata(
            tensor_meta=shapes,
            tensor_device=device,
            owner=self._owner,
            address=os.environ.get("UCCL_TCPX_ADVERTISE") or ray.util.get_node_ip_address(),
            port=self._listener(gpu).port,
            keys=[window and window.key for window in windows],
        )
        return metadata, windows

    def _listener(self, gpu):
        if gpu not in self._listeners:
            listener = tcpx.listen(port=0, gpu=gpu, name=self._owner, secret=self.secret, windows=True)
            listener.serve()
            self._listeners[gpu] = listener
        return self._listeners[gpu]

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        with self._lock:
            _, windows = self._objects.pop(obj_id, (None, []))
        for window in windows:
            if window is not None:
                window.close()  # reads under way end; after it Ray may give the memory to others

    # --- the reader --------------------------------------------------------------------------------------------

    def fetch_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        metadata = tensor_transport_metadata
        tensors = list(target_buffers) if target_buffers else self._new(metadata)
        needed = [(tensor, key) for tensor, key in zip(tensors, metadata.keys, strict=True) if key is not None]
        if not needed:
            return Fetch(obj_id=obj_id, tensors=tensors)
        _, gpu = self._place([tensor for tensor, _ in needed])
        try:
            session, transfer = self._begin(metadata, needed, gpu)
        except tcpx.Error as error:
            raise self._failure(obj_id, error) from error
        fetch = Fetch(
            obj_id=obj_id, tensors=tensors, transfer=transfer, session=session, expires=time.monotonic() + self.timeout
        )
        with self._lock:
            self._fetches.add(fetch)
        return fetch

    def _begin(self, metadata, needed, gpu):
        """A connection that broke while nobody used it is made again."""
        for is_last in (False, True):
            session, is_new = self._session(metadata, gpu)
            try:
                return session, session.read(
                    joined(tcpx.Window(tensor)[:] for tensor, _ in needed),
                    joined(session.remote(key)[0 : tensor.nbytes] for tensor, key in needed),
                    after=None if gpu is None else "current",  # torch may give out memory that its stream still uses
                    timeout=self.timeout,
                )
            except tcpx.PeerError:
                self._give_up(session)
                if is_new or is_last:
                    raise

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        if fetch_request.transfer is not None:
            try:
                self._wait(fetch_request, timeout)
            except tcpx.Error as error:
                fetch_request.cancel()  # a deadline is known at once here, and at a stopped peer never
                fetch_request.transfer = None
                if isinstance(error, tcpx.PeerError):
                    self._give_up(fetch_request.session)
                raise self._failure(fetch_request.obj_id, error) from error
            fetch_request.transfer = None
        return fetch_request.tensors

    @staticmethod
    def _wait(fetch, timeout):
        """TimeoutError: it goes on. tcpx.Timeout: its own time is over."""
        left = max(0.0, fetch.expires - time.monotonic())
        try:
            fetch.transfer.wait(left if timeout < 0 else min(left, timeout))
        except tcpx.Timeout as error:
            if time.monotonic() >= fetch.expires:
                raise
            raise TimeoutError(str(error)) from None

    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        fetch = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(fetch)

    def abort_transport(self, obj_id, communicator_metadata):
        with self._lock:
            fetches = [fetch for fetch in self._fetches if fetch.obj_id == obj_id]
        for fetch in fetches:
            fetch.cancel()

    @staticmethod
    def _failure(obj_id, error):
        return RayDirectTransportError(f"object {obj_id} was not read by tcpx: {error}")

    # --- sessions ----------------------------------------------------------------------------------------------

    def _session(self, metadata, gpu):
        """With the owner of an object, and whether it is new."""
        peer = (metadata.owner, gpu)
        with self._lock:
            session = self._sessions.get(peer)
            if session is not None:
                self._sessions.move_to_end(peer)
                return session, False
        made = tcpx.connect(
            metadata.address, metadata.port, gpu=gpu, name=self._owner, secret=self.secret, timeout=self.timeout
        )
        with self._lock:
            session = self._sessions.setdefault(peer, made)  # of two threads, the first one's
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)  # closed when its last transfer is done
        if session is not made:
            made.close()
        return session, session is made

    def _give_up(self, session):
        """Its peer is lost: it is of no use to later objects."""
        with self._lock:
            for peer in [peer for peer, at in self._sessions.items() if at is session]:
                del self._sessions[peer]
        session.close()


class ArrayTransport(TensorTransport):
    """The same for arrays of numpy."""

    @staticmethod
    def _place(arrays):
        return "cpu", None

    @staticmethod
    def _new(metadata):
        import numpy

        return [numpy.empty(shape, dtype) for shape, dtype in metadata.tensor_meta]


def register(name="TCPX", *, data_type=None, secret=None, timeout=60.0):
    """Makes the transport known to Ray, in this process and on the actors that it creates from now on.

    data_type: torch.Tensor, or numpy.ndarray under another name. secret: the path of a file that all of them have,
    which keeps strangers out. timeout: seconds, for a connection and for the read of an object.
    """
    base, devices = ArrayTransport, ["cpu"]
    if data_type is None or data_type.__module__.startswith("torch"):
        import torch

        base, devices, data_type = TensorTransport, ["cuda", "cpu"], torch.Tensor
    options = {"secret": secret, "timeout": timeout, "name": name.upper()}
    register_tensor_transport(name, devices, type(base.__name__, (base,), options), data_type)
