"""An array that has nothing but __dlpack__, made by hand: one row of bytes."""

import ctypes


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype = ctypes.py_object
capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, Destructor]


class Exporter:
    """Counts the capsules that it gave away and those that were dropped."""

    def __init__(self, data):
        self.data = ctypes.create_string_buffer(data, len(data))
        self.shape = (ctypes.c_int64 * 1)(len(data))
        self.tensor = Tensor(
            ctypes.addressof(self.data), 1, 0, 1, 1, 8, 1, self.shape, None, 0
        )
        self.given = self.released = 0
        self.destructor = Destructor(self.release)

    def release(self, _):
        self.released += 1

    def __dlpack__(self):
        self.given += 1
        return capsule_new(ctypes.addressof(self.tensor), b"dltensor", self.destructor)
